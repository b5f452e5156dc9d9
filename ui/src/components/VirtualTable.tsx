/**
 * Table that scrolls with the page and renders only the rows near the viewport, so that sorting a thousand rows costs as much as
 * sorting thirty. All rows have the same height (style.css: --row), which depends on the screen width.
 */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

export interface TableColumn<Row, Id extends string> {
  id: Id;
  label: string;
  kind: "text" | "number";
  /** CSS class; `wide` columns are hidden on narrow screens, where another cell shows the same data. */
  class?: string;
  render: (row: Row) => ComponentChildren;
}

interface Props<Row, Id extends string> {
  label: string;
  testId: string;
  columns: readonly TableColumn<Row, Id>[];
  rows: readonly Row[];
  rowKey: (row: Row) => string;
  sorted: { column: Id; direction: "asc" | "desc" } | null;
  onSort: (column: Id) => void;
}

const OVERSCAN = 5;

export function VirtualTable<Row, Id extends string>(props: Props<Row, Id>) {
  const { columns, rows, sorted } = props;
  const body = useRef<HTMLTableSectionElement>(null);
  const { from, until, rowHeight } = useVisibleRows(body, rows.length);
  const shown = rows.slice(from, until);
  return (
    <table class="table" aria-label={props.label} aria-rowcount={rows.length + 1} data-testid={props.testId} data-rows={rows.length}>
      <thead>
        <tr aria-rowindex={1}>
          {columns.map((column) => {
            const direction = sorted?.column === column.id ? sorted.direction : null;
            return (
              <th
                key={column.id}
                scope="col"
                class={`${column.kind} ${column.class ?? ""}`}
                aria-sort={direction === null ? "none" : direction === "asc" ? "ascending" : "descending"}
              >
                <button type="button" onClick={() => props.onSort(column.id)} data-testid={`sort-${column.id}`}>
                  {column.label}
                  <span class={`arrow ${direction ?? ""}`} aria-hidden="true" />
                </button>
              </th>
            );
          })}
        </tr>
      </thead>
      <tbody ref={body}>
        {from > 0 && <tr class="spacer" style={{ height: `${from * rowHeight}px` }} aria-hidden="true" />}
        {shown.map((row, index) => (
          <tr key={props.rowKey(row)} aria-rowindex={from + index + 2}>
            {columns.map((column) => (
              <td key={column.id} class={`${column.kind} ${column.class ?? ""}`}>
                {column.render(row)}
              </td>
            ))}
          </tr>
        ))}
        {until < rows.length && <tr class="spacer" style={{ height: `${(rows.length - until) * rowHeight}px` }} aria-hidden="true" />}
      </tbody>
    </table>
  );
}

/** Return the range of rows in or near the viewport, and the row height in px. */
function useVisibleRows(body: { current: HTMLElement | null }, count: number) {
  const [visible, setVisible] = useState({ from: 0, until: 40, rowHeight: 41 });
  useLayoutEffect(() => {
    const update = () => {
      const element = body.current;
      if (element === null) return;
      const rowHeight = Number.parseFloat(getComputedStyle(element).getPropertyValue("--row")) + 1;
      const above = Math.max(0, -element.getBoundingClientRect().top);
      const from = Math.max(0, Math.min(count - 1, Math.floor(above / rowHeight)) - OVERSCAN);
      const until = Math.min(count, from + Math.ceil(innerHeight / rowHeight) + 2 * OVERSCAN);
      setVisible((old) => (old.from === from && old.until === until && old.rowHeight === rowHeight ? old : { from, until, rowHeight }));
    };
    update();
    addEventListener("scroll", update, { passive: true });
    addEventListener("resize", update);
    return () => {
      removeEventListener("scroll", update);
      removeEventListener("resize", update);
    };
  }, [count]);
  return visible;
}

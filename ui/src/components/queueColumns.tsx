/** The columns of the queues page. */
import { exact, formatCount, formatDuration, UNKNOWN, utcTime } from "../format";
import { href, queueHref, queueKey } from "../router";
import { troubleOf } from "../liveQueues";
import type { Column, Row } from "../queueRows";
import type { QueueState, Tenant } from "../apiTypes";
import type { TableColumn } from "./VirtualTable";

interface Known {
  tenant: Tenant;
  grouped: boolean;
  nowMs: number;
  /** Queue → the plugin that provides its tasks. */
  plugins: Readonly<Record<string, string>>;
  states: ReadonlyMap<string, QueueState>;
}

export function queueColumns(known: Known): TableColumn<Row, Column>[] {
  const { tenant, grouped, nowMs, plugins, states } = known;
  const state = (row: Row) => states.get(queueKey({ ...tenant, queue: row.queue }));
  const count = (id: "warm" | "cold" | "total", label: string, hidden = ""): TableColumn<Row, Column> => ({
    id,
    label,
    kind: "number",
    class: `${id} ${hidden}`,
    render: (row) => (
      <span title={exact(row[id])} class={row[id] === 0 ? "zero" : ""}>
        {formatCount(row[id])}
      </span>
    ),
  });
  const text = (id: "flow" | "type" | "task", label: string): TableColumn<Row, Column> => ({
    id,
    label,
    kind: "text",
    class: `${id} wide`,
    render: (row) => <span title={row[id]}>{row[id] === "" ? <i class="zero">{UNKNOWN}</i> : row[id]}</span>,
  });
  const name: TableColumn<Row, Column> = {
    id: "queue",
    label: "Class",
    kind: "text",
    class: "name",
    render: (row) => <ClassCell row={row} tenant={tenant} state={state(row)} plugin={plugins[row.queue]} nowMs={nowMs} grouped={grouped} />,
  };
  const oldest: TableColumn<Row, Column> = {
    id: "oldest",
    label: "Oldest",
    kind: "number",
    class: "oldest",
    render: (row) =>
      row.oldestMs === null ? (
        <span class="zero">{UNKNOWN}</span>
      ) : (
        <time title={`since ${utcTime(row.oldestMs / 1000)}`}>{formatDuration(Math.max(0, nowMs - row.oldestMs))}</time>
      ),
  };
  if (!grouped) return [text("flow", "Flow"), text("type", "Type"), text("task", "Task"), name, count("warm", "Warm", "wide"), count("cold", "Cold", "wide"), count("total", "Total"), oldest];
  return [name, text("task", "Tasks"), running(), dead(tenant), count("warm", "Warm", "wide"), count("cold", "Cold", "wide"), count("total", "Total"), oldest];
}

interface CellProps {
  row: Row;
  tenant: Tenant;
  state: QueueState | undefined;
  plugin: string | undefined;
  nowMs: number;
  grouped: boolean;
}

function ClassCell({ row, tenant, state, plugin, nowMs, grouped }: CellProps) {
  const trouble = state === undefined ? null : troubleOf(state, nowMs);
  const below = grouped ? row.task : [row.task, row.flow, row.type].filter((part) => part !== "").join(" · ");
  return (
    <span class="cell-name">
      <span class="line">
        <a href={queueHref({ ...tenant, queue: row.queue })} title={plugin === undefined ? row.queue : `${row.queue}\nprovided by ${plugin}`}>
          {row.queue}
        </a>
        {trouble !== null && <em class="tag">{trouble}</em>}
        {state?.cold_mode === true && <em class="tag cool">cold</em>}
      </span>
      <small class="narrow">{below === "" ? UNKNOWN : below}</small>
    </span>
  );
}

function running(): TableColumn<Row, Column> {
  return {
    id: "running",
    label: "Running",
    kind: "number",
    class: "wide",
    render: (row) => (
      <span class={row.running === 0 ? "zero" : ""} title={`${exact(row.running)} run${row.limit === null ? "" : `, of at most ${exact(row.limit)}`}`}>
        {formatCount(row.running)}
        {row.limit !== null && <small> / {formatCount(row.limit)}</small>}
      </span>
    ),
  };
}

function dead(tenant: Tenant): TableColumn<Row, Column> {
  return {
    id: "dead",
    label: "Dead",
    kind: "number",
    class: "wide",
    render: (row) =>
      row.dead ? (
        <a href={href({ name: "dead" }, tenant, { queue: row.queue })} title={exact(row.dead)}>
          {formatCount(row.dead)}
        </a>
      ) : (
        <span class="zero">0</span>
      ),
  };
}

/** The columns of the queues page. */
import type { QueueState, Tenant } from "../apiTypes";
import { formatCount, formatDuration, formatExact, formatUtcTime, UNKNOWN } from "../format";
import { queueProblem } from "../liveQueues";
import type { Column, QueueRow } from "../queueRows";
import { href, queueHref, queueKey } from "../router";
import type { TableColumn } from "./VirtualTable";

interface ColumnContext {
  tenant: Tenant;
  grouped: boolean;
  nowMs: number;
  /** Queue → the plugin that provides its tasks. */
  plugins: Readonly<Record<string, string>>;
  states: ReadonlyMap<string, QueueState>;
}

export function queueColumns(context: ColumnContext): TableColumn<QueueRow, Column>[] {
  const { tenant, grouped, nowMs, plugins, states } = context;
  const state = (row: QueueRow) => states.get(queueKey({ ...tenant, queue: row.queue }));
  const count = (id: "warm" | "cold" | "total", label: string, hidden = ""): TableColumn<QueueRow, Column> => ({
    id,
    label,
    kind: "number",
    class: `${id} ${hidden}`,
    render: (row) => (
      <span title={formatExact(row[id])} class={row[id] === 0 ? "zero" : ""}>
        {formatCount(row[id])}
      </span>
    ),
  });
  const text = (id: "flow" | "type" | "task", label: string): TableColumn<QueueRow, Column> => ({
    id,
    label,
    kind: "text",
    class: `${id} wide`,
    render: (row) => <span title={row[id]}>{row[id] === "" ? <i class="zero">{UNKNOWN}</i> : row[id]}</span>,
  });
  const name: TableColumn<QueueRow, Column> = {
    id: "queue",
    label: "Queue",
    kind: "text",
    class: "name",
    render: (row) => <QueueCell row={row} tenant={tenant} state={state(row)} plugin={plugins[row.queue]} nowMs={nowMs} grouped={grouped} />,
  };
  const oldest: TableColumn<QueueRow, Column> = {
    id: "oldest",
    label: "Oldest",
    kind: "number",
    class: "oldest",
    render: (row) =>
      row.oldestMs === null ? (
        <span class="zero">{UNKNOWN}</span>
      ) : (
        <time title={`since ${formatUtcTime(row.oldestMs / 1000)}`}>{formatDuration(Math.max(0, nowMs - row.oldestMs))}</time>
      ),
  };
  if (!grouped) return [text("flow", "Flow"), text("type", "Type"), text("task", "Task"), name, count("warm", "Warm", "wide"), count("cold", "Cold", "wide"), count("total", "Total"), oldest];
  return [name, text("task", "Tasks"), running(), dead(tenant), count("warm", "Warm", "wide"), count("cold", "Cold", "wide"), count("total", "Total"), oldest];
}

interface CellProps {
  row: QueueRow;
  tenant: Tenant;
  state: QueueState | undefined;
  plugin: string | undefined;
  nowMs: number;
  grouped: boolean;
}

function QueueCell({ row, tenant, state, plugin, nowMs, grouped }: CellProps) {
  const problem = state === undefined ? null : queueProblem(state, nowMs);
  const below = grouped ? row.task : [row.task, row.flow, row.type].filter((part) => part !== "").join(" · ");
  return (
    <span class="cell-name">
      <span class="line">
        <a href={queueHref({ ...tenant, queue: row.queue })} title={plugin === undefined ? row.queue : `${row.queue}\nprovided by ${plugin}`}>
          {row.queue}
        </a>
        {problem !== null && <em class="tag">{problem}</em>}
        {state?.cold_mode === true && <em class="tag cool">cold</em>}
      </span>
      <small class="narrow">{below === "" ? UNKNOWN : below}</small>
    </span>
  );
}

function running(): TableColumn<QueueRow, Column> {
  return {
    id: "running",
    label: "Running",
    kind: "number",
    class: "wide",
    render: (row) => (
      <span class={row.running === 0 ? "zero" : ""} title={`${formatExact(row.running)} running${row.limit === null ? "" : `, limit ${formatExact(row.limit)}`}`}>
        {formatCount(row.running)}
        {row.limit !== null && <small> / {formatCount(row.limit)}</small>}
      </span>
    ),
  };
}

function dead(tenant: Tenant): TableColumn<QueueRow, Column> {
  return {
    id: "dead",
    label: "Dead",
    kind: "number",
    class: "wide",
    render: (row) =>
      row.dead ? (
        <a href={href({ name: "dead" }, tenant, { queue: row.queue })} title={formatExact(row.dead)}>
          {formatCount(row.dead)}
        </a>
      ) : (
        <span class="zero">0</span>
      ),
  };
}

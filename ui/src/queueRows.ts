/** Rows of the queues page: join both tiers, group, filter, sort. Pure, and fast enough for thousands of rows. */
import type { ActionQueue, DetailedQueues, QueueState } from "./apiTypes";

export interface QueueRow {
  key: string;
  queue: string;
  flow: string;
  type: string;
  task: string;
  warm: number;
  /** Null while PostgreSQL is unavailable. */
  cold: number | null;
  /** Null if `cold` is. */
  total: number | null;
  /** When the oldest waiting job became eligible, in epoch ms; null if no job is waiting. */
  oldestMs: number | null;
  /** Null in rows that are only a part of a queue. */
  running: number | null;
  dead: number | null;
  limit: number | null;
}

export const COLUMNS = ["flow", "type", "task", "queue", "running", "dead", "warm", "cold", "total", "oldest"] as const;
export type Column = (typeof COLUMNS)[number];
export type Direction = "asc" | "desc";

export interface Order {
  column: Column;
  direction: Direction;
}

export interface Filter {
  text: string;
  type: string;
  coldOnly: boolean;
}

/** Build one row per flow, type, task and queue, adding up both tiers. */
export function joinTiers(details: DetailedQueues): QueueRow[] {
  const rows = new Map<string, QueueRow>();
  const cold = details.coldQueues === null ? null : 0;
  const add = (entries: readonly ActionQueue[], tier: "warm" | "cold") => {
    for (const entry of entries) {
      const key = JSON.stringify([entry.actionClass, entry.flowName, entry.flowType, entry.actionName]);
      const row = rows.get(key) ?? emptyRow(key, entry, cold);
      row[tier] = (row[tier] ?? 0) + entry.count;
      row.total = row.cold === null ? null : row.warm + row.cold;
      row.oldestMs = earliest(row.oldestMs, entry.oldestQueuedAt === null ? null : Date.parse(entry.oldestQueuedAt));
      rows.set(key, row);
    }
  };
  add(details.warmQueues, "warm");
  add(details.coldQueues ?? [], "cold");
  return [...rows.values()];
}

function emptyRow(key: string, entry: ActionQueue, cold: number | null): QueueRow {
  const { actionClass: queue, flowName: flow, flowType: type, actionName: task } = entry;
  return { key, queue, flow, type, task, warm: 0, cold, total: cold, oldestMs: null, running: null, dead: null, limit: null };
}

/** Build one row per queue from its live state, listing the flows, types and tasks of its waiting jobs. */
export function groupByQueue(queues: Iterable<QueueState>, rows: readonly QueueRow[]): QueueRow[] {
  const parts = new Map<string, QueueRow[]>();
  for (const row of rows) parts.set(row.queue, [...(parts.get(row.queue) ?? []), row]);
  return [...queues].map((state) => {
    const own = parts.get(state.queue) ?? [];
    const joinNames = (read: (row: QueueRow) => string) => [...new Set(own.map(read).filter((name) => name !== ""))].sort().join(", ");
    return {
      key: state.queue,
      queue: state.queue,
      flow: joinNames((row) => row.flow),
      type: joinNames((row) => row.type),
      task: joinNames((row) => row.task),
      warm: state.warm,
      cold: state.cold,
      total: state.depth,
      oldestMs: state.oldest_at === null ? null : Date.parse(state.oldest_at),
      running: state.running,
      dead: state.dead,
      limit: state.limit,
    };
  });
}

export function filterRows(rows: readonly QueueRow[], filter: Filter): QueueRow[] {
  const words = filter.text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return rows.filter((row) => {
    if (filter.coldOnly && row.cold === 0) return false;
    if (filter.type !== "" && !row.type.split(", ").includes(filter.type)) return false;
    const text = `${row.queue}\n${row.task}\n${row.flow}\n${row.type}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

const collator = new Intl.Collator(undefined, { numeric: true });

/** Sort rows. Unknown values come last in either direction; ties are sorted by name, so that the order is stable. */
export function sortRows(rows: readonly QueueRow[], { column, direction }: Order): QueueRow[] {
  const sign = direction === "asc" ? 1 : -1;
  return [...rows].sort((a, b) => sign * compare(a, b, column, sign) || collator.compare(a.queue, b.queue) || collator.compare(a.key, b.key));
}

function compare(a: QueueRow, b: QueueRow, column: Column, sign: number): number {
  if (column === "flow" || column === "type" || column === "task" || column === "queue") return collator.compare(a[column], b[column]);
  const [left, right] = [numericValue(a, column), numericValue(b, column)];
  if (left === null || right === null) return sign * (Number(left === null) - Number(right === null));
  return left - right;
}

function numericValue(row: QueueRow, column: "running" | "dead" | "warm" | "cold" | "total" | "oldest"): number | null {
  if (column === "oldest") return row.oldestMs === null ? null : -row.oldestMs; // the oldest job has the earliest time
  return column === "total" ? (row.total ?? row.warm) : row[column]; // of unknown totals, what is known counts
}

function earliest(a: number | null, b: number | null): number | null {
  return a === null ? b : b === null ? a : Math.min(a, b);
}

export function flowTypes(rows: readonly QueueRow[]): string[] {
  return [...new Set(rows.map((row) => row.type).filter((type) => type !== ""))].sort();
}

// ---- In the URL --------------------------------------------------------------------------------------

export const DEFAULT_ORDER: Order = { column: "total", direction: "desc" };

export function parseOrder(params: URLSearchParams): Order {
  const [column, direction] = (params.get("sort") ?? "").split(".");
  const known = COLUMNS.find((name) => name === column);
  return known === undefined ? DEFAULT_ORDER : { column: known, direction: direction === "asc" ? "asc" : "desc" };
}

export function orderParam({ column, direction }: Order): string | null {
  return column === DEFAULT_ORDER.column && direction === DEFAULT_ORDER.direction ? null : `${column}.${direction}`;
}

const TEXT_COLUMNS: readonly Column[] = ["flow", "type", "task", "queue"];

/** Return the order after a click on a column heading: reversed if it is the sort column, else names ascending and numbers descending. */
export function toggleSort(order: Order, column: Column): Order {
  if (order.column === column) return { column, direction: order.direction === "asc" ? "desc" : "asc" };
  return { column, direction: TEXT_COLUMNS.includes(column) ? "asc" : "desc" };
}

export function parseFilter(params: URLSearchParams): Filter {
  return { text: params.get("q") ?? "", type: params.get("type") ?? "", coldOnly: params.get("tier") === "cold" };
}

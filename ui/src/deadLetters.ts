/** Filters of the dead letters page, stored in the URL. Pure. */
import type { DeadFilter, QueueState } from "./apiTypes";

export interface DeadView {
  /** Null selects the queue with the most dead letters. */
  queue: string | null;
  task: string;
  error: string;
  /** Id of an entry of SINCE; "" means any time. */
  since: string;
}

export const SINCE = [
  { id: "", label: "Any time", seconds: null },
  { id: "15m", label: "Last 15 min", seconds: 900 },
  { id: "1h", label: "Last hour", seconds: 3600 },
  { id: "24h", label: "Last 24 h", seconds: 86_400 },
  { id: "7d", label: "Last 7 days", seconds: 7 * 86_400 },
] as const;

export function parseDeadView(params: URLSearchParams): DeadView {
  const since = params.get("since") ?? "";
  return {
    queue: params.get("queue"),
    task: params.get("task") ?? "",
    error: params.get("error") ?? "",
    since: SINCE.some((each) => each.id === since) ? since : "",
  };
}

export function deadFilter(view: DeadView, nowMs: number): DeadFilter {
  const seconds = SINCE.find((each) => each.id === view.since)?.seconds ?? null;
  return {
    ...(view.task === "" ? {} : { task: view.task }),
    ...(view.error === "" ? {} : { error: view.error }),
    ...(seconds === null ? {} : { buried_from: new Date(nowMs - seconds * 1000).toISOString() }),
  };
}

export function isFiltered(view: DeadView): boolean {
  return view.task !== "" || view.error !== "" || view.since !== "";
}

/** List the queues with dead letters, most first; the chosen queue is always included. */
export function deadQueues(queues: Iterable<QueueState>, chosen: string | null): { queue: string; dead: number }[] {
  const found = [...queues]
    .filter((state) => state.dead > 0 || state.queue === chosen)
    .map(({ queue, dead }) => ({ queue, dead }))
    .sort((a, b) => b.dead - a.dead || a.queue.localeCompare(b.queue));
  return chosen === null || found.some((each) => each.queue === chosen) ? found : [...found, { queue: chosen, dead: 0 }];
}

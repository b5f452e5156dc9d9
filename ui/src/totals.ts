/** Summary numbers computed from live state and from history. Pure; unknown values are null. */
import type { History, QueueState } from "./apiTypes";
import { epochSeconds, resolutionSeconds } from "./chartData";

export const THROUGHPUT_WINDOW_S = 60;

/** Return completed jobs per second over the last final minute; null if no point is final. */
export function recentThroughput(history: History): number | null {
  const finalPoints = history.timeseries.filter((point) => point.complete);
  const resolutionS = resolutionSeconds(history.resolution);
  const recent = finalPoints.slice(-Math.max(1, Math.round(THROUGHPUT_WINDOW_S / resolutionS)));
  if (recent.length === 0) return null;
  const completed = recent.reduce((sum, point) => sum + (point.throughput.completed ?? 0), 0);
  return completed / (recent.length * resolutionS);
}

/** Return the age of a time on the server's clock, in ms; null without a time. */
export function ageMs(at: string | null, serverMs: number): number | null {
  return at === null ? null : Math.max(0, serverMs - Date.parse(at));
}

/** Return how far the watermark is behind the end of the period, in ms; null if nothing is final. */
export function historyLagMs(history: History): number | null {
  if (history.watermark === null) return null;
  return Math.max(0, (epochSeconds(history.period.end) - epochSeconds(history.watermark)) * 1000);
}

export interface QueueTotals {
  depth: number;
  warm: number;
  cold: number;
  running: number;
  dead: number;
  queues: number;
  oldestAt: string | null;
}

/** Add up the queues of an environment. */
export function sumQueues(queues: Iterable<QueueState>): QueueTotals {
  const sum: QueueTotals = { depth: 0, warm: 0, cold: 0, running: 0, dead: 0, queues: 0, oldestAt: null };
  for (const queue of queues) {
    sum.depth += queue.depth;
    sum.warm += queue.warm;
    sum.cold += queue.cold;
    sum.running += queue.running;
    sum.dead += queue.dead;
    sum.queues += 1;
    if (queue.oldest_at !== null && (sum.oldestAt === null || Date.parse(queue.oldest_at) < Date.parse(sum.oldestAt))) {
      sum.oldestAt = queue.oldest_at;
    }
  }
  return sum;
}

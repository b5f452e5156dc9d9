/** Numbers in words' place: of the live state and of history. Pure; unknown is null. */
import { epochSeconds, resolutionSeconds } from "./chartData";
import type { History, QueueState } from "./apiTypes";

export const THROUGHPUT_WINDOW_S = 60;

/** Completed jobs per second over the last minute that is final; null when no such point exists. */
export function recentThroughput(history: History): number | null {
  const finalPoints = history.timeseries.filter((point) => point.complete);
  const resolutionS = resolutionSeconds(history.resolution);
  const recent = finalPoints.slice(-Math.max(1, Math.round(THROUGHPUT_WINDOW_S / resolutionS)));
  if (recent.length === 0) return null;
  const completed = recent.reduce((sum, point) => sum + (point.throughput.completed ?? 0), 0);
  return completed / (recent.length * resolutionS);
}

/** How long a time is ago on the server's clock; null when there is none. */
export function ageMs(at: string | null, serverMs: number): number | null {
  return at === null ? null : Math.max(0, serverMs - Date.parse(at));
}

/** How far the finished part of the history lies behind the end of the window; null when nothing is finished. */
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

/** All queues together. */
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

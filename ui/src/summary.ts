/** The headline numbers, from the live state and the history. Pure; unknown is null. */
import type { QueueMetrics, QueueState } from "./api";
import { epochSeconds, resolutionSeconds } from "./series";

export const THROUGHPUT_WINDOW_S = 60;

/** Completed jobs per second over the last minute that is final; null when no such point exists. */
export function recentThroughput(metrics: QueueMetrics): number | null {
  const settled = settledPoints(metrics);
  const resolutionS = resolutionSeconds(metrics.resolution);
  const recent = settled.slice(-Math.max(1, Math.round(THROUGHPUT_WINDOW_S / resolutionS)));
  if (recent.length === 0) return null;
  const completed = recent.reduce((sum, point) => sum + point.throughput.completed, 0);
  return completed / (recent.length * resolutionS);
}

/** (nack + dlq) / dequeued over the final part of the window; null when nothing was dequeued. */
export function failureRate(metrics: QueueMetrics): number | null {
  let failed = 0;
  let dequeued = 0;
  for (const point of settledPoints(metrics)) {
    failed += point.failures.nack + point.failures.dlq;
    dequeued += point.throughput.dequeued;
  }
  return dequeued === 0 ? null : failed / dequeued;
}

/** Age of the oldest waiting job on the server's clock; null when nothing waits. */
export function oldestAgeMs(state: QueueState, serverTime: string): number | null {
  if (state.oldest_at === null) return null;
  return Math.max(0, (epochSeconds(serverTime) - epochSeconds(state.oldest_at)) * 1000);
}

/** How far the finished part of the history lies behind the end of the window; null when nothing is finished. */
export function historyLagMs(metrics: QueueMetrics): number | null {
  if (metrics.watermark === null) return null;
  return Math.max(0, (epochSeconds(metrics.period.end) - epochSeconds(metrics.watermark)) * 1000);
}

function settledPoints(metrics: QueueMetrics) {
  if (metrics.watermark === null) return [];
  const until = epochSeconds(metrics.watermark);
  const resolutionS = resolutionSeconds(metrics.resolution);
  return metrics.timeseries.filter((point) => epochSeconds(point.timestamp) + resolutionS <= until);
}

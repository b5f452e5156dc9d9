/** Answers of the API for tests: a calm queue, changed by what the test is about. */
import type { MetricPoint, QueueMetrics } from "./api";

export const START = Date.parse("2026-11-15T20:00:00Z") / 1000;

/** ISO time `seconds` after START. */
export function at(seconds: number): string {
  return new Date((START + seconds) * 1000).toISOString();
}

export interface PointValues {
  enqueued?: number;
  dequeued?: number;
  completed?: number;
  depth?: number | null;
  running?: number | null;
  limit?: number | null;
  nack?: number;
  dlq?: number;
}

export function point(seconds: number, values: PointValues = {}, resolutionS = 5): MetricPoint {
  const { enqueued = 0, dequeued = 0, completed = 0, depth = null, running = null, limit = null, nack = 0, dlq = 0 } = values;
  return {
    timestamp: at(seconds),
    throughput: {
      enqueued,
      dequeued,
      completed,
      enqueued_per_s: enqueued / resolutionS,
      dequeued_per_s: dequeued / resolutionS,
      completed_per_s: completed / resolutionS,
    },
    queue_depth: { max: depth, last: depth },
    latency: { avg_wait_ms: null, max_age_ms: null },
    concurrency: { max: running, last: running, limit, utilization_pct: null },
    failures: { nack, dlq, ttl_expired: 0 },
  };
}

/** A window that ends with its last point; final as a whole unless told. */
export function metrics(timeseries: MetricPoint[], watermark: string | null = at(3600)): QueueMetrics {
  return { queue: "emails", period: { start: at(0), end: at(timeseries.length * 5) }, resolution: "5s", watermark, timeseries };
}

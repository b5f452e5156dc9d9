/** API responses for tests: an idle queue, with the given values changed. */
import type { ActionQueue, History, IncidentDetail, MetricPoint, PipelineProcess, QueueState, Rule, ServerEvent, ValkeyServer, WatchedStream } from "./apiTypes";

export const START = Date.parse("2026-11-15T20:00:00Z") / 1000;
export const TENANT = { org: "acme", project: "shop", env: "prod" };

/** ISO time `seconds` after START. */
export function at(seconds: number): string {
  return new Date((START + seconds) * 1000).toISOString();
}

export interface PointValues {
  enqueued?: number | null;
  dequeued?: number;
  completed?: number;
  depth?: number | null;
  warm?: number | null;
  cold?: number | null;
  running?: number | null;
  limit?: number | null;
  nack?: number;
  dlq?: number;
  expired?: number;
  waitP95?: number | null;
}

const NO_QUANTILES = { p50: null, p90: null, p95: null, p99: null };
const NO_RANGE_QUANTILES = { ...NO_QUANTILES, count: 0 };
const NO_LATENCY = { avg_wait_ms: null, max_age_ms: null, avg_run_ms: null };
const NO_MOVES = { spilled: 0, refilled: 0, reclaimed: 0, released: 0, redriven: 0, cancelled: 0, deferred: 0 };

export function point(seconds: number, values: PointValues = {}, resolutionS = 5): MetricPoint {
  const { enqueued = 0, dequeued = 0, completed = 0, depth = null, running = null, limit = null, nack = 0, dlq = 0 } = values;
  return {
    timestamp: at(seconds),
    complete: true,
    throughput: {
      enqueued,
      dequeued,
      completed,
      enqueued_per_s: enqueued === null ? null : enqueued / resolutionS,
      dequeued_per_s: dequeued / resolutionS,
      completed_per_s: completed / resolutionS,
    },
    queue_depth: { max: depth, last: depth, warm: values.warm ?? null, cold: values.cold ?? null, scheduled: null, bytes: null, max_bytes: null },
    latency: NO_LATENCY,
    percentiles: { wait_ms: { ...NO_QUANTILES, p95: values.waitP95 ?? null }, run_ms: NO_QUANTILES },
    concurrency: { max: running, last: running, limit, utilization_pct: null },
    failures: { nack, dlq, ttl_expired: values.expired ?? 0 },
    moves: NO_MOVES,
  };
}

/** History that ends with its last point; all of it is final unless `watermark` is given. */
export function history(timeseries: MetricPoint[], watermark: string | null = at(3600)): History {
  const until = watermark === null ? Number.NEGATIVE_INFINITY : Date.parse(watermark);
  return {
    period: { start: at(0), end: at(timeseries.length * 5) },
    resolution: "5s",
    source: { tier: "5s", reason: "up to 2h in steps of 5s" },
    watermark,
    generation: 0,
    completeness: { pct: 100, missing: {} },
    headline: {
      totals: { enqueued: 0, dequeued: 0, completed: 0, nack: 0, dlq: 0, ttl_expired: 0, ...NO_MOVES },
      throughput: { enqueued_per_s: 0, dequeued_per_s: 0, completed_per_s: 0 },
      failure_rate: null,
      ttl_rate: null,
      latency: NO_LATENCY,
      queue_depth: { max: null, last: null },
      concurrency: { max: null, max_utilization_pct: null },
      peak: { queue_depth: null, completed_per_s: null },
    },
    percentiles: { wait_ms: NO_RANGE_QUANTILES, run_ms: NO_RANGE_QUANTILES },
    timeseries: timeseries.map((each) => ({ ...each, complete: Date.parse(each.timestamp) + 5000 <= until })),
  };
}

export function queueState(queue: string, values: Partial<QueueState> = {}): QueueState {
  return {
    ...TENANT,
    queue,
    depth: 0,
    warm: 0,
    cold: 0,
    cold_mode: false,
    scheduled: 0,
    running: 0,
    dead: 0,
    limit: null,
    utilization_pct: null,
    paused: false,
    closed: false,
    bytes: 0,
    cold_bytes: 0,
    oldest_at: null,
    oldest_age_ms: null,
    ...values,
  };
}

export function waiting(queue: string, task: string, count: number, values: Partial<ActionQueue> = {}): ActionQueue {
  return { ...TENANT, actionClass: queue, actionName: task, flowName: "", flowType: "", count, oldestQueuedAt: null, ...values };
}

export function incident(values: Partial<IncidentDetail> = {}): IncidentDetail {
  return {
    ...TENANT,
    id: "i-1",
    rule_id: "rule_1",
    rule: "jobs wait too long",
    condition: "OLDEST_AGE > 30 s over 30 s",
    queue: "reports",
    severity: "warning",
    state: "firing",
    value: 45_000,
    current_value: 50_000,
    current_at: at(0),
    fired_at: at(0),
    acknowledged_at: null,
    acknowledged_by: null,
    resolved_at: null,
    reason: null,
    transitions: [],
    deliveries: [],
    ...values,
  };
}

export function serverEvent(values: Partial<ServerEvent> = {}): ServerEvent {
  return {
    id: 7,
    noticed_at: at(0),
    server: "valkey",
    shard: 1,
    kind: "went back",
    description: "Its replication id changed.",
    missing: 12,
    queues: 1,
    losses: [{ ...TENANT, queue: "emails", missing: 12 }],
    ...values,
  };
}

export function rule(values: Partial<Rule> = {}): Rule {
  return {
    ...TENANT,
    id: "rule_1",
    name: "backlog",
    metric: "BACKLOG",
    queue: null,
    operator: "GREATER_THAN",
    threshold: 1000,
    percentile: "avg",
    within_ms: null,
    objective: null,
    window_s: 300,
    for_s: 0,
    cooldown_s: 900,
    severity: "warning",
    auto_resolve: true,
    channels: [],
    enabled: true,
    condition: "BACKLOG > 1,000 jobs over 5 min",
    created_at: at(0),
    updated_at: at(0),
    last_fired_at: null,
    ...values,
  };
}

/** A consumer group without problems and without entries. */
export function watchedStream(stream: string, values: Partial<WatchedStream> = {}): WatchedStream {
  return {
    ...{ org: "default", project: "default", env: "streams", queue: `${stream}/workers`, stream, group: "workers" },
    ...{ undelivered: 0, pending: 0, load: 0, retrying: 0, in_backoff: 0, dead: 0, total_messages: 0, hard_maxlen: 100_000 },
    ...{ oldest_undelivered_age_ms: null, oldest_pending_age_ms: null, longest_idle_ms: null },
    ...{ consumers: [], consumers_total: 0, stuck: 0, deliveries: {}, counted: true },
    ...{ reason: null, unknown_since: null, measured_at: at(0), age_ms: 1000, stale: false },
    ...values,
  };
}

/** A pipeline that sends what it reads. */
export function pipelineProcess(values: Partial<PipelineProcess> = {}): PipelineProcess {
  return {
    condition: "fresh",
    reported_at: at(0),
    age_ms: 500,
    state: "running",
    failures_in_a_row: 0,
    last_error: null,
    read_up_to: at(0),
    last_batch_at: at(0),
    batches: 8,
    events: 900,
    lost_events: 0,
    host: null,
    pid: null,
    metrics_port: null,
    spool: { records: 2, bytes: 500, max_records: 10, max_bytes: 1000, in_flight: 1, delayed: 0, oldest_at: null, disk_available: null, dead: 0, dropped: 0, corrupt: 0 },
    export: {
      healthy: true,
      problem: null,
      breaker: "closed",
      breaker_opened: 0,
      backoff_ms: 0,
      latency_ms: 12,
      sent_records: 30,
      failures: 0,
      unclear_records: 0,
      rows_per_s: 22.5,
      bytes_per_s: 9000,
      records_per_s: 2,
    },
    ...values,
  };
}

/** A server that fills up. */
export function valkeyServer(values: Partial<ValkeyServer> = {}): ValkeyServer {
  return { name: "0-1", shards: [], used_bytes: 2 ** 20, max_bytes: 2 ** 30, limit: "maxmemory", full_in_s: 7200, growth_bytes_per_s: 1e5, unknown: null, ...values };
}

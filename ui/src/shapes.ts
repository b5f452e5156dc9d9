/** Answers of the API, as far as the dashboard reads them. Names and meanings are those of docs/reference/api.md. */

export interface Tenant {
  org: string;
  project: string;
  env: string;
}

/** A queue's full name. Any part may hold any Unicode, so it is encoded for URLs in one place and shown as text only. */
export interface QueueRef extends Tenant {
  queue: string;
}

export type Level = "read" | "operate" | "admin";

export interface Who {
  name: string;
  level: Level;
  scope: { org: string | null; project: string | null; env: string | null };
}

/** What a queue and an environment both have. */
interface Totals {
  depth: number;
  warm: number;
  cold: number;
  scheduled: number;
  running: number;
  dead: number;
  limit: number | null;
  bytes: number;
  oldest_at: string | null;
}

export interface QueueState extends QueueRef, Totals {
  cold_mode: boolean;
  paused: boolean;
  closed: boolean;
}

export interface QueueList {
  queues: QueueState[];
  next: string | null;
  /** The server's clock when it answered: ages are measured against this, never against the viewer's clock. */
  timestamp: string;
}

export interface Environment extends Tenant, Totals {
  burst: number | null;
  oldest_age_ms: number | null;
  /** How many there are. */
  queues: number;
  paused: number;
}

export interface EnvironmentList {
  environments: Environment[];
  total: number;
  timestamp: string;
}

export interface Quantiles {
  p50: number | null;
  p90: number | null;
  p95: number | null;
  p99: number | null;
}

export interface MetricPoint {
  timestamp: string;
  complete: boolean;
  throughput: {
    enqueued: number;
    dequeued: number;
    completed: number;
    enqueued_per_s: number;
    dequeued_per_s: number;
    completed_per_s: number;
  };
  queue_depth: { max: number | null; last: number | null; warm: number | null; cold: number | null; max_bytes: number | null };
  percentiles: { wait_ms: Quantiles; run_ms: Quantiles };
  concurrency: { max: number | null; last: number | null; limit: number | null; utilization_pct: number | null };
  failures: { nack: number; dlq: number; ttl_expired: number };
}

/** History of a queue or of an environment. */
export interface History {
  period: { start: string; end: string };
  resolution: string;
  source: { tier: string; reason: string };
  /** Points that end at or before this are final; null when nothing is. */
  watermark: string | null;
  completeness: { pct: number | null; missing: Record<string, number> };
  headline: {
    totals: { enqueued: number; dequeued: number; completed: number; nack: number; dlq: number; ttl_expired: number };
    failure_rate: number | null;
  };
  percentiles: { wait_ms: Quantiles; run_ms: Quantiles };
  timeseries: MetricPoint[];
}

export interface RankedQueue {
  rank: number;
  queue: string;
  value: number;
}

export interface TopQueues {
  metric: string;
  unit: string;
  queues: RankedQueue[];
}

/** What waits in one tier, in the words of action classes: action class = queue, action = task. */
export interface ActionQueue extends Tenant {
  actionClass: string;
  flowName: string;
  flowType: string;
  actionName: string;
  count: number;
  oldestQueuedAt: string | null;
}

export interface DetailedQueues {
  warmQueues: ActionQueue[];
  coldQueues: ActionQueue[];
  timestamp: string;
  truncated: boolean;
}

export interface ActionTask extends Tenant {
  actionClass: string;
  actionName: string;
  /** The job's id. */
  did: string;
  startTime: string;
  runningForMs: number;
  appName: string;
}

export interface RunningTasks {
  tasks: ActionTask[];
  truncated: boolean;
}

export interface Payload {
  bytes: number;
  encoding: "text" | "base64";
  preview: string;
  cut: boolean;
}

export type JobState = "cold" | "scheduled" | "ready" | "running" | "dead" | "done";

export interface Job extends Tenant {
  id: string;
  state: JobState;
  queue: string | null;
  task: string | null;
  flow: string;
  flow_type: string;
  priority: number;
  attempts: number;
  max_attempts: number;
  enqueued_at: string | null;
  due_at: string | null;
  expires_at: string | null;
  payload: Payload | null;
  error: string | null;
}

export interface DeadJob {
  id: string;
  task: string;
  flow: string;
  flow_type: string;
  attempts: number;
  max_attempts: number;
  enqueued_at: string;
  buried_at: string;
  bytes: number;
  /** The last line of it in lists, the whole with its traceback in details. */
  error: string;
}

export interface DeadJobDetail extends DeadJob {
  payload: Payload;
}

export interface DeadList {
  jobs: DeadJob[];
  next: string | null;
}

export interface Redriven {
  redriven: number;
  next: string | null;
}

export interface PipelineBatch {
  finished_at: string;
  batch_id: number;
  events: number;
  rows: number;
  duration_ms: number;
  /** From its oldest event until its rows could be read; null of a batch without events. */
  fresh_after_ms: number | null;
  lost_events: number;
  set_aside: number;
  rewinds: number;
}

export interface PipelineHealth {
  watermark: string | null;
  lag_ms: number | null;
  last_hour: {
    batches: number;
    events: number;
    rows: number;
    duration_p50_ms: number | null;
    duration_p99_ms: number | null;
    freshness_p50_ms: number | null;
    freshness_p99_ms: number | null;
    lost_events: number;
    set_aside: number;
    rewinds: number;
  };
  /** Newest first. */
  batches: PipelineBatch[];
  timestamp: string;
}

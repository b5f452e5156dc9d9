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

export interface CurrentKey {
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
  /** Counts are null where the pipeline lost what it had read. */
  throughput: {
    enqueued: number | null;
    dequeued: number | null;
    completed: number | null;
    enqueued_per_s: number | null;
    dequeued_per_s: number | null;
    completed_per_s: number | null;
  };
  queue_depth: { max: number | null; last: number | null; warm: number | null; cold: number | null; max_bytes: number | null };
  percentiles: { wait_ms: Quantiles; run_ms: Quantiles };
  concurrency: { max: number | null; last: number | null; limit: number | null; utilization_pct: number | null };
  failures: { nack: number | null; dlq: number | null; ttl_expired: number | null };
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

/** A time of which rows were lost between the pipeline and ClickHouse. */
export interface PipelineGap {
  shard: number;
  start: string;
  end: string;
  /** Null: not known. */
  events: number | null;
}

/** A server failed over, lost data, was restored to an earlier point, or was replaced. */
export interface ServerEvent {
  id: number;
  noticed_at: string;
  server: "valkey" | "postgres";
  shard: number;
  kind: string;
  /** Null for keys that do not reach everything. */
  description: string | null;
  /** Accepted jobs that are missing, as far as counters know, in the queues that the key reaches. */
  missing: number;
  /** Queues that miss jobs; `losses` lists those that miss most. */
  queues: number;
  losses: (QueueRef & { missing: number })[];
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
  /** Oldest first. */
  gaps: PipelineGap[];
  /** Newest first; null: PostgreSQL did not answer. */
  server_events: ServerEvent[] | null;
  /** Newest first. */
  batches: PipelineBatch[];
  timestamp: string;
}

export type Severity = "info" | "warning" | "critical";
export type Metric = "BACKLOG" | "LATENCY" | "ERROR_RATE" | "OLDEST_AGE" | "NO_DATA";
export type Operator = "GREATER_THAN" | "LESS_THAN";
export type Percentile = "avg" | "p50" | "p90" | "p95" | "p99";

export interface Incident extends Tenant {
  id: string;
  rule_id: string;
  /** Its name and its condition when it fired; without a condition it is one of Headrace's own health. */
  rule: string;
  condition: string | null;
  /** Null: not about a queue. */
  queue: string | null;
  severity: Severity;
  state: "firing" | "acknowledged" | "resolved";
  /** When it fired. */
  value: number | null;
  fired_at: string;
  acknowledged_at: string | null;
  acknowledged_by: string | null;
  resolved_at: string | null;
  /** Why it was resolved, if not by itself. */
  reason: string | null;
}

export interface Transition {
  id: string;
  kind: "pending" | "ok" | "firing" | "resolved";
  at: string;
  value: number | null;
  /** Channels were told. */
  told: boolean;
}

/** A message about an incident on its way to one channel. */
export interface Delivery {
  id: string;
  channel_id: string;
  channel: string;
  kind: "firing" | "resolved";
  attempts: number;
  created_at: string;
  delivered_at: string | null;
  given_up_at: string | null;
  /** Why it was not taken, or which recipients were refused. */
  error: string | null;
}

export interface IncidentDetail extends Incident {
  transitions: Transition[];
  deliveries: Delivery[];
}

export interface IncidentList {
  incidents: Incident[];
  next: string | null;
}

/** What a person chooses of a rule. */
export interface RuleFields {
  name: string;
  metric: Metric;
  /** Null: each queue of the environment by itself. */
  queue: string | null;
  operator: Operator;
  /** In jobs, ms, or a share from 0 to 1. */
  threshold: number;
  percentile: Percentile;
  window_s: number;
  for_s: number;
  cooldown_s: number;
  severity: Severity;
  auto_resolve: boolean;
  /** Ids. */
  channels: string[];
}

export interface Rule extends Tenant, RuleFields {
  id: string;
  enabled: boolean;
  condition: string;
}

export type ChannelType = "slack" | "email" | "webhook" | "apprise";

export interface Channel extends Tenant {
  id: string;
  name: string;
  type: ChannelType;
  /** Where it leads, without what is secret. */
  target: string;
  /** Is told too of incidents of Headrace itself. */
  health: boolean;
  enabled: boolean;
  /** Tries in a row that failed. */
  failures: number;
  last_error: string | null;
  retry_at: string | null;
  last_sent_at: string | null;
}

export interface CreatedChannel extends Channel {
  /** Of a webhook, if it was made now: this is the only time it is shown. */
  secret: string | null;
}

export interface TestResult {
  delivered: boolean;
  error: string | null;
}

export interface Silence extends Tenant {
  id: string;
  /** Null: every rule. */
  rule_id: string | null;
  /** Null: every queue. */
  queue: string | null;
  reason: string;
  made_by: string;
  starts_at: string;
  ends_at: string;
}

export interface StreamConsumer {
  name: string;
  pending: number;
  /** Since it last gave a sign. */
  idle_ms: number;
  stuck: boolean;
}

/** A group of a stream as its watcher last saw it. Null is not known; of ages also that there is none. */
export interface WatchedStream extends QueueRef {
  stream: string;
  group: string;
  undelivered: number | null;
  pending: number | null;
  load: number | null;
  retrying: number | null;
  in_backoff: number | null;
  dead: number | null;
  oldest_undelivered_age_ms: number | null;
  oldest_pending_age_ms: number | null;
  longest_idle_ms: number | null;
  /** Stuck ones first; not all of many. */
  consumers: StreamConsumer[] | null;
  consumers_total: number | null;
  stuck: number | null;
  /** Of the oldest pending entries: how often delivered → how many. */
  deliveries: Record<string, number> | null;
  /** Headrace's own workers have worked here: failures, waits and run times are known. */
  counted: boolean | null;
  reason: string | null;
  unknown_since: string | null;
  measured_at: string | null;
  age_ms: number | null;
  stale: boolean;
}

export interface WatchedStreamList {
  streams: WatchedStream[];
  total: number;
  next: string | null;
}

/** A kind of worker that the autoscaler decides about. */
export interface WorkerType {
  name: string;
  /** Null: every one. */
  org: string | null;
  project: string | null;
  env: string | null;
  queues: string[];
  all_queues: boolean;
  stream: string | null;
  group: string | null;
  enabled: boolean;
  min: number;
  max: number;
  per_worker: number;
  /** Workers that really run; null: Headrace does not start them. */
  current: number | null;
  wanted: number;
  /** False: something could not be seen, and the number was kept. */
  known: boolean;
  /** False: the last decision is old. */
  fresh: boolean;
  sentence: string;
  decided_at: string;
}

export interface Decision {
  id: number;
  verb: "up" | "down" | "hold";
  /** How many were wanted before. */
  current: number;
  wanted: number;
  known: boolean;
  sentence: string;
  /** What it is based on. Later releases may know more. */
  inputs: Record<string, unknown>;
  decided_at: string;
}

export interface DecisionList {
  decisions: Decision[];
  next: string | null;
}

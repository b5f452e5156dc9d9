/** Types of API documents. Generated from the OpenAPI description by tools/dashboard_types.py; do not edit. */

export interface ActionQueue {
  actionClass: string;
  flowName: string;
  flowType: string;
  actionName: string;
  count: number;
  oldestQueuedAt: string | null;
  org: string;
  project: string;
  env: string;
}

export interface ActionTask {
  actionClass: string;
  actionName: string;
  did: string;
  startTime: string;
  runningForMs: number;
  appName: string;
  org: string;
  project: string;
  env: string;
}

export interface BacktestDocument {
  condition: string;
  start_at: string;
  end_at: string;
  fired: number;
  queues: number;
  every_s: number;
  evaluations: number;
  unknown: number;
  incidents: BacktestIncident[];
}

export interface BacktestIncident {
  queue: string | null;
  fired_at: string;
  value: number | null;
  resolved_at: string | null;
}

export interface Batch {
  finished_at: string;
  batch_id: number;
  events: number;
  rows: number;
  duration_ms: number;
  fresh_after_ms: number | null;
  lost_events: number;
  set_aside: number;
  rewinds: number;
}

export interface Cancelled {
  id: string;
  was: "cold" | "scheduled" | "ready" | "running";
}

export interface Caps {
  items: number;
  bytes: number;
}

export interface CapsChange {
  items?: number | null;
  bytes?: number | null;
}

export interface ChannelChange {
  url?: string | null;
  to?: string[] | null;
  secret?: string | null;
  health?: boolean | null;
  enabled?: boolean | null;
  name?: string | null;
  type?: "slack" | "email" | "webhook" | "apprise" | null;
}

export interface ChannelDocument {
  id: string;
  org: string;
  project: string;
  env: string;
  name: string;
  type: "slack" | "email" | "webhook" | "apprise";
  target: string;
  health: boolean;
  enabled: boolean;
  failures: number;
  last_error: string | null;
  retry_at: string | null;
  last_sent_at: string | null;
}

export interface ChannelList {
  channels: ChannelDocument[];
}

export interface Completeness {
  pct: number | null;
  missing: Record<string, number>;
}

export interface Concurrency {
  max: number | null;
  last: number | null;
  limit: number | null;
  utilization_pct: number | null;
}

export interface ConcurrencyColumns {
  max: (number | null)[];
  last: (number | null)[];
  limit: (number | null)[];
  utilization_pct: (number | null)[];
}

export interface ConsumerDocument {
  name: string;
  pending: number;
  idle_ms: number;
  stuck: boolean;
}

export interface DeadJob {
  id: string;
  task: string;
  flow: string;
  flow_type: string;
  priority: number;
  attempts: number;
  max_attempts: number;
  enqueued_at: string;
  buried_at: string;
  bytes: number;
  error: string;
}

export interface DeadJobDetail {
  id: string;
  task: string;
  flow: string;
  flow_type: string;
  priority: number;
  attempts: number;
  max_attempts: number;
  enqueued_at: string;
  buried_at: string;
  bytes: number;
  error: string;
  payload: Payload;
  args: Record<string, unknown> | null;
  headers: Record<string, string>;
  codec: string;
}

export interface DeadList {
  jobs: DeadJob[];
  next: string | null;
}

export interface DecisionDocument {
  id: number;
  verb: "up" | "down" | "hold";
  current: number;
  wanted: number;
  known: boolean;
  sentence: string;
  inputs: Record<string, unknown>;
  decided_at: string;
}

export interface DecisionList {
  decisions: DecisionDocument[];
  next: string | null;
}

export interface DeliveryDocument {
  id: string;
  channel_id: string;
  channel: string;
  kind: "firing" | "resolved";
  attempts: number;
  created_at: string;
  delivered_at: string | null;
  given_up_at: string | null;
  error: string | null;
}

export interface Depth {
  max: number | null;
  last: number | null;
  warm: number | null;
  cold: number | null;
  scheduled: number | null;
  bytes: number | null;
  max_bytes: number | null;
}

export interface DepthColumns {
  max: (number | null)[];
  last: (number | null)[];
  warm: (number | null)[];
  cold: (number | null)[];
  scheduled: (number | null)[];
  bytes: (number | null)[];
  max_bytes: (number | null)[];
}

export interface DetailedQueues {
  warmQueues: ActionQueue[];
  coldQueues: ActionQueue[] | null;
  coldUnavailable: string | null;
  timestamp: string;
  truncated: boolean;
}

export interface Enqueued {
  accepted: number;
  known: number;
  jobs: EnqueuedJob[];
}

export interface EnqueuedJob {
  id: string;
  accepted: boolean;
}

export interface Environment {
  org: string;
  project: string;
  env: string;
  limit: number | null;
  burst: number | null;
  queues: number;
  paused: number;
  closed: number;
  depth: number;
  warm: number;
  cold: number;
  scheduled: number;
  running: number;
  dead: number;
  bytes: number;
  utilization_pct: number | null;
  oldest_at: string | null;
  oldest_age_ms: number | null;
}

export interface EnvironmentHistory {
  period: Period;
  resolution: string;
  source: Source;
  watermark: string | null;
  generation: number;
  completeness: Completeness;
  headline: Headline;
  percentiles: RangePercentiles;
  timeseries: Point[];
  environment: string;
}

export interface EnvironmentHistoryColumns {
  period: Period;
  resolution: string;
  source: Source;
  watermark: string | null;
  generation: number;
  completeness: Completeness;
  headline: Headline;
  percentiles: RangePercentiles;
  columns: HistoryColumns;
  environment: string;
}

export interface EnvironmentLimits {
  org: string;
  project: string;
  env: string;
  limit: number | null;
  burst: number | null;
}

export interface EnvironmentList {
  environments: Environment[];
  total: number;
  next: string | null;
  timestamp: string;
}

export interface Failures {
  nack: number | null;
  dlq: number | null;
  ttl_expired: number | null;
}

export interface FailuresColumns {
  nack: (number | null)[];
  dlq: (number | null)[];
  ttl_expired: (number | null)[];
}

export interface Flow {
  task: string;
  flow: string;
  flow_type: string;
  warm: number;
  cold: number | null;
  total: number | null;
  oldest_at: string | null;
}

export interface GapDocument {
  shard: number;
  start: string;
  end: string;
  events: number | null;
}

export interface Headline {
  totals: Totals;
  throughput: Rates;
  failure_rate: number | null;
  ttl_rate: number | null;
  latency: Latency;
  queue_depth: HeadlineDepth;
  concurrency: HeadlineConcurrency;
  peak: Peaks;
}

export interface HeadlineConcurrency {
  max: number | null;
  max_utilization_pct: number | null;
}

export interface HeadlineDepth {
  max: number | null;
  last: number | null;
}

export interface HistoryColumns {
  complete: boolean[];
  throughput: ThroughputColumns;
  queue_depth: DepthColumns;
  latency: LatencyColumns;
  percentiles: PercentilesColumns;
  concurrency: ConcurrencyColumns;
  failures: FailuresColumns;
  moves: MovesColumns;
  start: string;
  step_s: number;
  count: number;
}

export interface IncidentDetail {
  id: string;
  rule_id: string;
  rule: string;
  condition: string | null;
  org: string;
  project: string;
  env: string;
  queue: string | null;
  severity: "info" | "warning" | "critical";
  state: "firing" | "acknowledged" | "resolved";
  value: number | null;
  current_value: number | null;
  current_at: string | null;
  fired_at: string;
  acknowledged_at: string | null;
  acknowledged_by: string | null;
  resolved_at: string | null;
  reason: string | null;
  transitions: TransitionDocument[];
  deliveries: DeliveryDocument[];
}

export interface IncidentDocument {
  id: string;
  rule_id: string;
  rule: string;
  condition: string | null;
  org: string;
  project: string;
  env: string;
  queue: string | null;
  severity: "info" | "warning" | "critical";
  state: "firing" | "acknowledged" | "resolved";
  value: number | null;
  current_value: number | null;
  current_at: string | null;
  fired_at: string;
  acknowledged_at: string | null;
  acknowledged_by: string | null;
  resolved_at: string | null;
  reason: string | null;
}

export interface IncidentList {
  incidents: IncidentDocument[];
  next: string | null;
}

export interface Job {
  id: string;
  state: "cold" | "scheduled" | "ready" | "running" | "dead" | "done";
  org: string;
  project: string;
  env: string;
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
  cancel_requested: boolean;
  args: Record<string, unknown> | null;
  headers: Record<string, string>;
  codec: string;
  progress: Record<string, unknown> | string | null;
}

export interface JobToEnqueue {
  task: string;
  payload?: unknown;
  args?: Record<string, unknown> | null;
  headers?: Record<string, string>;
  payload_encoding?: "json" | "base64";
  id?: string | null;
  delay_ms?: number;
  priority?: number;
  ttl_ms?: number | null;
  max_attempts?: number;
  flow?: string;
  flow_type?: string;
}

export interface JobsToEnqueue {
  jobs: JobToEnqueue[];
}

export interface KedaValue {
  value: number;
  type: string;
  sentence: string;
  decided_at: string;
}

export interface LastHour {
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
}

export interface Latency {
  avg_wait_ms: number | null;
  max_age_ms: number | null;
  avg_run_ms: number | null;
}

export interface LatencyColumns {
  avg_wait_ms: (number | null)[];
  max_age_ms: (number | null)[];
  avg_run_ms: (number | null)[];
}

export interface LimitsChange {
  limit: number | null;
  burst?: number | null;
}

export interface LiveQueue {
  org: string;
  project: string;
  env: string;
  queue: string;
  depth: number;
  warm: number;
  cold: number;
  cold_mode: boolean;
  scheduled: number;
  running: number;
  dead: number;
  limit: number | null;
  utilization_pct: number | null;
  paused: boolean;
  closed: boolean;
  oldest_at: string | null;
  oldest_age_ms: number | null;
  bytes: number;
  cold_bytes: number;
}

export interface LossDocument {
  org: string;
  project: string;
  env: string;
  queue: string;
  missing: number;
}

export interface MadeChannel {
  id: string;
  org: string;
  project: string;
  env: string;
  name: string;
  type: "slack" | "email" | "webhook" | "apprise";
  target: string;
  health: boolean;
  enabled: boolean;
  failures: number;
  last_error: string | null;
  retry_at: string | null;
  last_sent_at: string | null;
  secret: string | null;
}

export interface MetricStream {
  shard: number;
  length: number | null;
  max_length: number;
  unread: number | null;
  enabled: boolean;
}

export interface MissingTask {
  task: string;
  since: string;
  last_at: string;
  deferrals: number;
}

export interface Moves {
  spilled: number | null;
  refilled: number | null;
  reclaimed: number | null;
  released: number | null;
  redriven: number | null;
  cancelled: number | null;
  deferred: number | null;
}

export interface MovesColumns {
  spilled: (number | null)[];
  refilled: (number | null)[];
  reclaimed: (number | null)[];
  released: (number | null)[];
  redriven: (number | null)[];
  cancelled: (number | null)[];
  deferred: (number | null)[];
}

export interface NewChannel {
  url?: string | null;
  to?: string[] | null;
  secret?: string | null;
  health?: boolean | null;
  enabled?: boolean | null;
  name: string;
  type: "slack" | "email" | "webhook" | "apprise";
}

export interface NewRule {
  queue?: string | null;
  operator?: "GREATER_THAN" | "LESS_THAN" | null;
  threshold?: number | null;
  percentile?: "avg" | "p50" | "p90" | "p95" | "p99" | null;
  within_ms?: number | null;
  objective?: number | null;
  window_s?: number | null;
  cooldown_s?: number | null;
  for_s?: number | null;
  severity?: "info" | "warning" | "critical" | null;
  enabled?: boolean | null;
  auto_resolve?: boolean | null;
  channels?: string[] | null;
  name: string;
  metric: "BACKLOG" | "LATENCY" | "ERROR_RATE" | "OLDEST_AGE" | "NO_DATA" | "SLO";
}

export interface NewSilence {
  ends_at: string;
  starts_at?: string | null;
  rule_id?: string | null;
  queue?: string | null;
  reason?: string;
}

export interface Payload {
  bytes: number;
  encoding: "text" | "base64";
  preview: string;
  cut: boolean;
}

export interface PeakValue {
  value: number;
  timestamp: string;
}

export interface Peaks {
  queue_depth: PeakValue | null;
  completed_per_s: PeakValue | null;
}

export interface Percentiles {
  wait_ms: Quantiles;
  run_ms: Quantiles;
}

export interface PercentilesColumns {
  wait_ms: QuantilesColumns;
  run_ms: QuantilesColumns;
}

export interface Period {
  start: string;
  end: string;
}

export interface Pipeline {
  process: PipelineProcess | null;
  streams: MetricStream[] | null;
  valkey: ValkeyServer[] | null;
  watermark: string | null;
  lag_ms: number | null;
  last_hour: LastHour | null;
  gaps: GapDocument[] | null;
  server_events: ServerEventDocument[] | null;
  batches: Batch[] | null;
  unavailable: Record<string, string>;
  timestamp: string;
}

export interface PipelineExport {
  healthy: boolean | null;
  problem: string | null;
  breaker: string | null;
  breaker_opened: number | null;
  backoff_ms: number | null;
  latency_ms: number | null;
  sent_records: number | null;
  failures: number | null;
  unclear_records: number | null;
  rows_per_s: number | null;
  bytes_per_s: number | null;
  records_per_s: number | null;
}

export interface PipelineProcess {
  condition: "fresh" | "stale" | "missing" | "unreadable";
  reported_at: string | null;
  age_ms: number | null;
  state: string | null;
  failures_in_a_row: number | null;
  last_error: string | null;
  read_up_to: string | null;
  last_batch_at: string | null;
  batches: number | null;
  events: number | null;
  lost_events: number | null;
  host: string | null;
  pid: number | null;
  metrics_port: number | null;
  spool: PipelineSpool | null;
  export: PipelineExport | null;
}

export interface PipelineSpool {
  records: number | null;
  bytes: number | null;
  max_records: number | null;
  max_bytes: number | null;
  in_flight: number | null;
  delayed: number | null;
  oldest_at: string | null;
  disk_available: number | null;
  dead: number | null;
  dropped: number | null;
  corrupt: number | null;
}

export interface Point {
  timestamp: string;
  complete: boolean;
  throughput: Throughput;
  queue_depth: Depth;
  latency: Latency;
  percentiles: Percentiles;
  concurrency: Concurrency;
  failures: Failures;
  moves: Moves;
}

export interface ProblemDocument {
  type?: string;
  title: string;
  status: number;
  detail: string;
  instance?: string | null;
  error_id?: string | null;
  quota?: string | null;
  limit?: number | null;
  used?: number | null;
}

export interface Quantiles {
  p50: number | null;
  p90: number | null;
  p95: number | null;
  p99: number | null;
}

export interface QuantilesColumns {
  p50: (number | null)[];
  p90: (number | null)[];
  p95: (number | null)[];
  p99: (number | null)[];
}

export interface QueueDetail {
  org: string;
  project: string;
  env: string;
  queue: string;
  depth: number;
  warm: number;
  cold: number;
  cold_mode: boolean;
  scheduled: number;
  running: number;
  dead: number;
  limit: number | null;
  utilization_pct: number | null;
  paused: boolean;
  closed: boolean;
  oldest_at: string | null;
  oldest_age_ms: number | null;
  bytes: number;
  cold_bytes: number;
  settings: QueueSettings;
  counting_since: string;
  odometers: Record<string, number>;
  flows: Flow[];
  flows_truncated: boolean;
  flows_complete: boolean;
  missing_tasks: MissingTask[];
  timestamp: string;
}

export interface QueueHistory {
  period: Period;
  resolution: string;
  source: Source;
  watermark: string | null;
  generation: number;
  completeness: Completeness;
  headline: Headline;
  percentiles: RangePercentiles;
  timeseries: Point[];
  queue: string;
}

export interface QueueHistoryColumns {
  period: Period;
  resolution: string;
  source: Source;
  watermark: string | null;
  generation: number;
  completeness: Completeness;
  headline: Headline;
  percentiles: RangePercentiles;
  columns: HistoryColumns;
  queue: string;
}

export interface QueueList {
  queues: LiveQueue[];
  total: number;
  next: string | null;
  timestamp: string;
}

export interface QueueSettings {
  paused: boolean;
  closed: boolean;
  limit: number | null;
  caps: Caps | null;
}

export type Quota = "warm_jobs" | "warm_bytes" | "cold_jobs" | "cold_bytes" | "queues" | "rules" | "channels" | "keys" | "enqueue_rate" | "enqueue_burst" | "running";

export interface QuotaChange {
  quotas: Partial<Record<Quota, number | null>>;
}

export interface QuotaDocument {
  quota: string;
  level: string;
  limit: number | null;
  source: string | null;
  used: number | null;
  share: number | null;
}

export interface QuotaList {
  org: string | null;
  project: string | null;
  env: string | null;
  quotas: QuotaDocument[];
}

export interface RangePercentiles {
  wait_ms: RangeQuantiles;
  run_ms: RangeQuantiles;
}

export interface RangeQuantiles {
  p50: number | null;
  p90: number | null;
  p95: number | null;
  p99: number | null;
  count: number;
}

export interface RankedConcurrency {
  last: number;
  limit: number | null;
  utilization_pct: number | null;
}

export interface RankedDepth {
  max: number;
  last: number;
  cold: number;
  scheduled: number;
  bytes: number;
}

export interface RankedLatency {
  avg_wait_ms: number | null;
  p50_wait_ms: number | null;
  p95_wait_ms: number | null;
  p99_wait_ms: number | null;
  age_ms: number;
}

export interface RankedQueue {
  rank: number;
  queue: string;
  value: number;
  queue_depth: RankedDepth;
  concurrency: RankedConcurrency;
  throughput: RankedThroughput;
  failures: Failures;
  latency: RankedLatency;
}

export interface RankedThroughput {
  enqueued: number;
  dequeued: number;
  completed: number;
}

export interface Rates {
  enqueued_per_s: number;
  dequeued_per_s: number;
  completed_per_s: number;
}

export interface Redrive {
  ids?: string[] | null;
  task?: string;
  error?: string;
  buried_from?: string | null;
  buried_to?: string | null;
  limit?: number;
  cursor?: string | null;
}

export interface Redriven {
  redriven: number;
  next: string | null;
}

export interface Removed {
  removed: number;
  next: string | null;
}

export interface RuleChange {
  queue?: string | null;
  operator?: "GREATER_THAN" | "LESS_THAN" | null;
  threshold?: number | null;
  percentile?: "avg" | "p50" | "p90" | "p95" | "p99" | null;
  within_ms?: number | null;
  objective?: number | null;
  window_s?: number | null;
  cooldown_s?: number | null;
  for_s?: number | null;
  severity?: "info" | "warning" | "critical" | null;
  enabled?: boolean | null;
  auto_resolve?: boolean | null;
  channels?: string[] | null;
  name?: string | null;
  metric?: "BACKLOG" | "LATENCY" | "ERROR_RATE" | "OLDEST_AGE" | "NO_DATA" | "SLO" | null;
}

export interface RuleDocument {
  id: string;
  org: string;
  project: string;
  env: string;
  name: string;
  queue: string | null;
  metric: "BACKLOG" | "LATENCY" | "ERROR_RATE" | "OLDEST_AGE" | "NO_DATA" | "SLO";
  operator: "GREATER_THAN" | "LESS_THAN";
  threshold: number;
  percentile: "avg" | "p50" | "p90" | "p95" | "p99";
  within_ms: number | null;
  objective: number | null;
  window_s: number;
  cooldown_s: number;
  for_s: number;
  severity: "info" | "warning" | "critical";
  enabled: boolean;
  auto_resolve: boolean;
  channels: string[];
  condition: string;
  created_at: string;
  updated_at: string;
  last_fired_at: string | null;
}

export interface RuleList {
  rules: RuleDocument[];
}

export interface RuleToTest {
  queue?: string | null;
  operator?: "GREATER_THAN" | "LESS_THAN" | null;
  threshold?: number | null;
  percentile?: "avg" | "p50" | "p90" | "p95" | "p99" | null;
  within_ms?: number | null;
  objective?: number | null;
  window_s?: number | null;
  cooldown_s?: number | null;
  for_s?: number | null;
  severity?: "info" | "warning" | "critical" | null;
  enabled?: boolean | null;
  auto_resolve?: boolean | null;
  channels?: string[] | null;
  name?: string | null;
  metric: "BACKLOG" | "LATENCY" | "ERROR_RATE" | "OLDEST_AGE" | "NO_DATA" | "SLO";
}

export interface RunningTasks {
  tasks: ActionTask[];
  heartbeatThresholdMs: number;
  truncated: boolean;
  total: number;
  next: string | null;
}

export interface ServerEventDocument {
  id: number;
  noticed_at: string;
  server: "valkey" | "postgres";
  shard: number;
  kind: string;
  description: string | null;
  missing: number;
  queues: number;
  losses: LossDocument[];
}

export interface SessionDocument {
  id: string;
  key_id: string;
  key_name: string;
  level: string;
  org: string | null;
  project: string | null;
  env: string | null;
  via: string;
  address: string;
  user_agent: string;
  created_at: string;
  last_used_at: string | null;
  expires_at: string;
  current: boolean;
}

export interface SessionList {
  sessions: SessionDocument[];
  next: string | null;
}

export interface SettingsChange {
  paused?: boolean;
  closed?: boolean;
  limit?: number | null;
  caps?: CapsChange | null;
}

export interface SignIn {
  key: string;
}

export interface SilenceDocument {
  id: string;
  org: string;
  project: string;
  env: string;
  rule_id: string | null;
  queue: string | null;
  reason: string;
  made_by: string;
  starts_at: string;
  ends_at: string;
}

export interface SilenceList {
  silences: SilenceDocument[];
}

export interface Source {
  tier: string;
  reason: string;
}

export interface Tested {
  id: string;
  delivered: boolean;
  error: string | null;
}

export interface Throughput {
  enqueued: number | null;
  dequeued: number | null;
  completed: number | null;
  enqueued_per_s: number | null;
  dequeued_per_s: number | null;
  completed_per_s: number | null;
}

export interface ThroughputColumns {
  enqueued: (number | null)[];
  dequeued: (number | null)[];
  completed: (number | null)[];
  enqueued_per_s: (number | null)[];
  dequeued_per_s: (number | null)[];
  completed_per_s: (number | null)[];
}

export interface TopQueues {
  environment: string;
  metric: string;
  unit: string;
  period: Period;
  source: Source;
  queues: RankedQueue[];
}

export interface Totals {
  enqueued: number;
  dequeued: number;
  completed: number;
  nack: number;
  dlq: number;
  ttl_expired: number;
  spilled: number;
  refilled: number;
  reclaimed: number;
  released: number;
  redriven: number;
  cancelled: number;
  deferred: number;
}

export interface TransitionDocument {
  id: string;
  kind: "pending" | "ok" | "firing" | "resolved";
  at: string;
  value: number | null;
  told: boolean;
}

export interface ValkeyServer {
  name: string;
  shards: ValkeyShard[];
  used_bytes: number | null;
  max_bytes: number | null;
  limit: "maxmemory" | "shard_max_bytes" | null;
  full_in_s: number | null;
  growth_bytes_per_s: number | null;
  unknown: "no limit" | "short window" | "no growth" | null;
}

export interface ValkeyShard {
  shard: number;
  payload_bytes: number;
  max_bytes: number | null;
}

export interface WatchedStream {
  org: string;
  project: string;
  env: string;
  queue: string;
  stream: string;
  group: string;
  undelivered: number | null;
  pending: number | null;
  load: number | null;
  retrying: number | null;
  in_backoff: number | null;
  dead: number | null;
  total_messages: number | null;
  hard_maxlen: number | null;
  oldest_undelivered_age_ms: number | null;
  oldest_pending_age_ms: number | null;
  longest_idle_ms: number | null;
  consumers: ConsumerDocument[] | null;
  consumers_total: number | null;
  stuck: number | null;
  deliveries: Record<string, number> | null;
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
  timestamp: string;
}

export interface WorkerTypeDocument {
  name: string;
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
  current: number | null;
  wanted: number;
  known: boolean;
  fresh: boolean;
  sentence: string;
  decided_at: string;
}

export interface WorkerTypeList {
  types: WorkerTypeDocument[];
}

-- The same per environment: all its queues together. Filled from the queues' 5 s table, so that both always agree.

CREATE TABLE IF NOT EXISTS {database}.environment_metrics_5s_v1
(
  organization_id            String,
  project_id                 String,
  environment_id             String,
  bucket_start               DateTime('UTC'),
  -- As in queue_metrics_5s_v1.
  generation                 UInt32 DEFAULT 0,

  -- Counters of all queues. Read with sum().
  enqueue_count              UInt64,
  spill_count                UInt64,
  refill_count               UInt64,
  dequeue_count              UInt64,
  ack_count                  UInt64,
  nack_count                 UInt64,
  dlq_count                  UInt64,
  ttl_expire_count           UInt64,
  reclaim_count              UInt64,
  release_count              UInt64,
  redrive_count              UInt64,
  cancel_count               UInt64,

  -- Gauges: the highest value in the bucket. Read with max().
  max_queue_length           SimpleAggregateFunction(max, UInt32),
  max_concurrency_current    SimpleAggregateFunction(max, UInt32),

  -- Gauges: their last values. Read with max(last).depth and so on; `at` as in queue_metrics_5s_v1. A limit of -1: none.
  last                       SimpleAggregateFunction(max, Tuple(
                               at UInt64, depth UInt32, running UInt32, `limit` Int64)),

  -- Averages and percentiles, as in queue_metrics_5s_v1.
  total_wait_duration_ms     UInt64,
  wait_duration_count        UInt64,
  total_run_duration_ms      UInt64,
  run_duration_count         UInt64,
  wait_histogram             SimpleAggregateFunction(sumMap, Map(Int16, UInt64)),
  run_histogram              SimpleAggregateFunction(sumMap, Map(Int16, UInt64))
)
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, bucket_start, generation)
TTL bucket_start + INTERVAL 2 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per environment, 5 s buckets, kept 2 days. Filled from the queues.';

CREATE TABLE IF NOT EXISTS {database}.environment_metrics_by_minute_v1 AS {database}.environment_metrics_5s_v1
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, bucket_start, generation)
TTL bucket_start + INTERVAL 31 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per environment, minutes, kept 31 days.';

CREATE TABLE IF NOT EXISTS {database}.environment_metrics_by_hour_v1 AS {database}.environment_metrics_5s_v1
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, bucket_start, generation)
TTL bucket_start + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per environment, hours, kept 400 days.';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.environment_metrics_5s_mv_v1
TO {database}.environment_metrics_5s_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  s.bucket_start AS bucket_start,
  sum(s.enqueue_count) AS enqueue_count,
  sum(s.spill_count) AS spill_count,
  sum(s.refill_count) AS refill_count,
  sum(s.dequeue_count) AS dequeue_count,
  sum(s.ack_count) AS ack_count,
  sum(s.nack_count) AS nack_count,
  sum(s.dlq_count) AS dlq_count,
  sum(s.ttl_expire_count) AS ttl_expire_count,
  sum(s.reclaim_count) AS reclaim_count,
  sum(s.release_count) AS release_count,
  sum(s.redrive_count) AS redrive_count,
  sum(s.cancel_count) AS cancel_count,
  max(s.max_env_queue_length) AS max_queue_length,
  max(s.max_env_concurrency) AS max_concurrency_current,
  max((s.last.at, s.last.env_depth, s.last.env_running, s.last.env_limit)) AS last,
  sum(s.total_wait_duration_ms) AS total_wait_duration_ms,
  sum(s.wait_duration_count) AS wait_duration_count,
  sum(s.total_run_duration_ms) AS total_run_duration_ms,
  sum(s.run_duration_count) AS run_duration_count,
  sumMap(s.wait_histogram) AS wait_histogram,
  sumMap(s.run_histogram) AS run_histogram
FROM {database}.queue_metrics_5s_v1 AS s
WHERE s.generation = 0
GROUP BY s.organization_id, s.project_id, s.environment_id, s.bucket_start;

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.environment_metrics_by_minute_mv_v1
TO {database}.environment_metrics_by_minute_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  toStartOfMinute(s.bucket_start) AS bucket_start,
  sum(s.enqueue_count) AS enqueue_count,
  sum(s.spill_count) AS spill_count,
  sum(s.refill_count) AS refill_count,
  sum(s.dequeue_count) AS dequeue_count,
  sum(s.ack_count) AS ack_count,
  sum(s.nack_count) AS nack_count,
  sum(s.dlq_count) AS dlq_count,
  sum(s.ttl_expire_count) AS ttl_expire_count,
  sum(s.reclaim_count) AS reclaim_count,
  sum(s.release_count) AS release_count,
  sum(s.redrive_count) AS redrive_count,
  sum(s.cancel_count) AS cancel_count,
  max(s.max_queue_length) AS max_queue_length,
  max(s.max_concurrency_current) AS max_concurrency_current,
  max(s.last) AS last,
  sum(s.total_wait_duration_ms) AS total_wait_duration_ms,
  sum(s.wait_duration_count) AS wait_duration_count,
  sum(s.total_run_duration_ms) AS total_run_duration_ms,
  sum(s.run_duration_count) AS run_duration_count,
  sumMap(s.wait_histogram) AS wait_histogram,
  sumMap(s.run_histogram) AS run_histogram
FROM {database}.environment_metrics_5s_v1 AS s
WHERE s.generation = 0
GROUP BY s.organization_id, s.project_id, s.environment_id, toStartOfMinute(s.bucket_start);

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.environment_metrics_by_hour_mv_v1
TO {database}.environment_metrics_by_hour_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  toStartOfHour(s.bucket_start) AS bucket_start,
  sum(s.enqueue_count) AS enqueue_count,
  sum(s.spill_count) AS spill_count,
  sum(s.refill_count) AS refill_count,
  sum(s.dequeue_count) AS dequeue_count,
  sum(s.ack_count) AS ack_count,
  sum(s.nack_count) AS nack_count,
  sum(s.dlq_count) AS dlq_count,
  sum(s.ttl_expire_count) AS ttl_expire_count,
  sum(s.reclaim_count) AS reclaim_count,
  sum(s.release_count) AS release_count,
  sum(s.redrive_count) AS redrive_count,
  sum(s.cancel_count) AS cancel_count,
  max(s.max_queue_length) AS max_queue_length,
  max(s.max_concurrency_current) AS max_concurrency_current,
  max(s.last) AS last,
  sum(s.total_wait_duration_ms) AS total_wait_duration_ms,
  sum(s.wait_duration_count) AS wait_duration_count,
  sum(s.total_run_duration_ms) AS total_run_duration_ms,
  sum(s.run_duration_count) AS run_duration_count,
  sumMap(s.wait_histogram) AS wait_histogram,
  sumMap(s.run_histogram) AS run_histogram
FROM {database}.environment_metrics_by_minute_v1 AS s
WHERE s.generation = 0
GROUP BY s.organization_id, s.project_id, s.environment_id, toStartOfHour(s.bucket_start);

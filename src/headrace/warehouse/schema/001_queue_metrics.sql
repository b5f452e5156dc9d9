-- History of every queue at three resolutions. The pipeline writes the 5 s table; views carry each insert on to the
-- minute and the hour. They pass generation 0 only: a backfill writes each tier itself.

CREATE TABLE IF NOT EXISTS {database}.queue_metrics_5s_v1
(
  organization_id            String,
  project_id                 String,
  environment_id             String,
  queue_name                 String,
  bucket_start               DateTime('UTC'),
  -- 0: as the pipeline counted it. Others: written again by a backfill. One of them counts per hour, see
  -- history_windows_v1. Read rows of that one only.
  generation                 UInt32 DEFAULT 0,
  -- The life of the queue that its odometers count from: a new one when Valkey lost its data.
  epoch                      UInt64,

  -- Counters. Read with sum(): rows of one bucket add up, merged or not.
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

  -- Gauges: the highest value in the bucket. Read with max(). Lengths and bytes are of both tiers together.
  max_queue_length           SimpleAggregateFunction(max, UInt32),
  max_cold_queue_length      SimpleAggregateFunction(max, UInt32),
  max_concurrency_current    SimpleAggregateFunction(max, UInt32),
  max_env_queue_length       SimpleAggregateFunction(max, UInt32),
  max_env_concurrency        SimpleAggregateFunction(max, UInt32),
  max_oldest_message_age_ms  SimpleAggregateFunction(max, UInt64),
  max_bytes                  SimpleAggregateFunction(max, UInt64),

  -- Gauges: their last values in the bucket, all from one event. Read with max(last).depth and so on: `at` is the id of
  -- the stream entry (milliseconds * 2^20 + sequence), so the newest wins and two events of one millisecond never tie.
  -- A limit of -1: none. oldest_at: when the longest-waiting job became eligible, in ms, 0: nothing waits; a time
  -- and not an age, because an age keeps growing while nothing happens.
  last                       SimpleAggregateFunction(max, Tuple(
                               at UInt64, depth UInt32, cold_depth UInt32, scheduled UInt32, running UInt32,
                               `limit` Int64, oldest_at UInt64, bytes UInt64, cold_bytes UInt64,
                               env_depth UInt32, env_running UInt32, env_limit Int64)),

  -- Averages: total / count. A wait of 0 ms counts.
  total_wait_duration_ms     UInt64,
  wait_duration_count        UInt64,
  total_run_duration_ms      UInt64,
  run_duration_count         UInt64,

  -- Percentiles: bucket i counts values in (2^((i-1)/16), 2^(i/16)] ms, -32768 counts zeros. Read with sumMap().
  wait_histogram             SimpleAggregateFunction(sumMap, Map(Int16, UInt64)),
  run_histogram              SimpleAggregateFunction(sumMap, Map(Int16, UInt64)),

  -- How far the queue's own counters moved, by number of the verb (the order of the counters in model/event.py):
  -- before the first event of the bucket, and after the last. Where they moved further than the counters above
  -- add up to, events were lost. Read with minMap() and maxMap(), within one epoch.
  first_odometers            SimpleAggregateFunction(minMap, Map(Int16, UInt64)),
  last_odometers             SimpleAggregateFunction(maxMap, Map(Int16, UInt64))
)
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, queue_name, bucket_start, generation, epoch)
TTL bucket_start + INTERVAL 2 DAY
-- A repeated insert of the same token changes nothing. Needed here and on every view's target.
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per queue, 5 s buckets, kept 2 days. Written by the pipeline.';

CREATE TABLE IF NOT EXISTS {database}.queue_metrics_by_minute_v1 AS {database}.queue_metrics_5s_v1
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, queue_name, bucket_start, generation, epoch)
TTL bucket_start + INTERVAL 31 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per queue, minutes, kept 31 days. Filled from the 5 s table.';

CREATE TABLE IF NOT EXISTS {database}.queue_metrics_by_hour_v1 AS {database}.queue_metrics_5s_v1
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, queue_name, bucket_start, generation, epoch)
TTL bucket_start + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per queue, hours, kept 400 days. Filled from the minutes.';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.queue_metrics_by_minute_mv_v1
TO {database}.queue_metrics_by_minute_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  s.queue_name AS queue_name,
  toStartOfMinute(s.bucket_start) AS bucket_start,
  s.epoch AS epoch,
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
  max(s.max_cold_queue_length) AS max_cold_queue_length,
  max(s.max_concurrency_current) AS max_concurrency_current,
  max(s.max_env_queue_length) AS max_env_queue_length,
  max(s.max_env_concurrency) AS max_env_concurrency,
  max(s.max_oldest_message_age_ms) AS max_oldest_message_age_ms,
  max(s.max_bytes) AS max_bytes,
  max(s.last) AS last,
  sum(s.total_wait_duration_ms) AS total_wait_duration_ms,
  sum(s.wait_duration_count) AS wait_duration_count,
  sum(s.total_run_duration_ms) AS total_run_duration_ms,
  sum(s.run_duration_count) AS run_duration_count,
  sumMap(s.wait_histogram) AS wait_histogram,
  sumMap(s.run_histogram) AS run_histogram,
  minMap(s.first_odometers) AS first_odometers,
  maxMap(s.last_odometers) AS last_odometers
FROM {database}.queue_metrics_5s_v1 AS s
WHERE s.generation = 0
GROUP BY s.organization_id, s.project_id, s.environment_id, s.queue_name, toStartOfMinute(s.bucket_start), s.epoch;

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.queue_metrics_by_hour_mv_v1
TO {database}.queue_metrics_by_hour_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  s.queue_name AS queue_name,
  toStartOfHour(s.bucket_start) AS bucket_start,
  s.epoch AS epoch,
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
  max(s.max_cold_queue_length) AS max_cold_queue_length,
  max(s.max_concurrency_current) AS max_concurrency_current,
  max(s.max_env_queue_length) AS max_env_queue_length,
  max(s.max_env_concurrency) AS max_env_concurrency,
  max(s.max_oldest_message_age_ms) AS max_oldest_message_age_ms,
  max(s.max_bytes) AS max_bytes,
  max(s.last) AS last,
  sum(s.total_wait_duration_ms) AS total_wait_duration_ms,
  sum(s.wait_duration_count) AS wait_duration_count,
  sum(s.total_run_duration_ms) AS total_run_duration_ms,
  sum(s.run_duration_count) AS run_duration_count,
  sumMap(s.wait_histogram) AS wait_histogram,
  sumMap(s.run_histogram) AS run_histogram,
  minMap(s.first_odometers) AS first_odometers,
  maxMap(s.last_odometers) AS last_odometers
FROM {database}.queue_metrics_by_minute_v1 AS s
WHERE s.generation = 0
GROUP BY s.organization_id, s.project_id, s.environment_id, s.queue_name, toStartOfHour(s.bucket_start), s.epoch;

-- The newest state of every queue, for ever: queues that are idle for longer than a tier lives are still known.
CREATE TABLE IF NOT EXISTS {database}.queue_last_v1
(
  organization_id            String,
  project_id                 String,
  environment_id             String,
  queue_name                 String,
  -- As in queue_metrics_5s_v1.
  last                       SimpleAggregateFunction(max, Tuple(
                               at UInt64, depth UInt32, cold_depth UInt32, scheduled UInt32, running UInt32,
                               `limit` Int64, oldest_at UInt64, bytes UInt64, cold_bytes UInt64,
                               env_depth UInt32, env_running UInt32, env_limit Int64))
)
ENGINE = AggregatingMergeTree
ORDER BY (organization_id, project_id, environment_id, queue_name)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per queue, its newest gauges. Never deleted. Filled from the 5 s table.';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.queue_last_mv_v1
TO {database}.queue_last_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  s.queue_name AS queue_name,
  max(s.last) AS last
FROM {database}.queue_metrics_5s_v1 AS s
WHERE s.generation = 0
GROUP BY s.organization_id, s.project_id, s.environment_id, s.queue_name;

-- History of every queue at three resolutions. The pipeline writes the 5 s table; views carry each
-- insert on to the minute and the hour.

CREATE TABLE IF NOT EXISTS {database}.queue_metrics_5s_v1
(
  organization_id            String,
  project_id                 String,
  environment_id             String,
  queue_name                 String,
  bucket_start               DateTime('UTC'),

  -- Counters. Read with sum(): rows of one bucket add up, merged or not.
  enqueue_count              UInt64,
  dequeue_count              UInt64,
  ack_count                  UInt64,
  nack_count                 UInt64,
  dlq_count                  UInt64,
  ttl_expire_count           UInt64,
  spill_count                UInt64,
  refill_count               UInt64,
  reclaim_count              UInt64,
  release_count              UInt64,
  redrive_count              UInt64,
  cancel_count               UInt64,

  -- Gauges: the highest value in the bucket. Read with max().
  max_queue_length           SimpleAggregateFunction(max, UInt32),
  max_concurrency_current    SimpleAggregateFunction(max, UInt32),
  max_env_queue_length       SimpleAggregateFunction(max, UInt32),
  max_env_concurrency        SimpleAggregateFunction(max, UInt32),
  max_oldest_message_age_ms  SimpleAggregateFunction(max, UInt64),

  -- Gauges: the last value in the bucket. Read with max(...).v: `at` is the stream entry id
  -- (milliseconds * 2^20 + sequence), so the newest wins and two events of one millisecond never tie.
  last_queue_length          SimpleAggregateFunction(max, Tuple(at UInt64, v UInt32)),
  last_concurrency_current   SimpleAggregateFunction(max, Tuple(at UInt64, v UInt32)),
  -- -1: no limit.
  last_concurrency_limit     SimpleAggregateFunction(max, Tuple(at UInt64, v Int64)),
  -- When the longest-waiting job became eligible, in ms; 0: nothing waits. A time, not an age:
  -- the age keeps growing while nothing happens.
  last_oldest_message_at     SimpleAggregateFunction(max, Tuple(at UInt64, v UInt64)),
  last_bytes                 SimpleAggregateFunction(max, Tuple(at UInt64, v UInt64)),

  -- Averages: total / count. A wait of 0 ms counts.
  total_wait_duration_ms     UInt64,
  wait_duration_count        UInt64,
  total_run_duration_ms      UInt64,
  run_duration_count         UInt64
)
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, queue_name, bucket_start)
TTL bucket_start + INTERVAL 2 DAY
-- A repeated insert of the same token changes nothing. Needed here and on every view's target.
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per queue, 5 s buckets, kept 2 days. Written by the pipeline.';

CREATE TABLE IF NOT EXISTS {database}.queue_metrics_by_minute_v1
(
  organization_id            String,
  project_id                 String,
  environment_id             String,
  queue_name                 String,
  bucket_start               DateTime('UTC'),

  -- Counters. Read with sum(): rows of one bucket add up, merged or not.
  enqueue_count              UInt64,
  dequeue_count              UInt64,
  ack_count                  UInt64,
  nack_count                 UInt64,
  dlq_count                  UInt64,
  ttl_expire_count           UInt64,
  spill_count                UInt64,
  refill_count               UInt64,
  reclaim_count              UInt64,
  release_count              UInt64,
  redrive_count              UInt64,
  cancel_count               UInt64,

  -- Gauges: the highest value in the bucket. Read with max().
  max_queue_length           SimpleAggregateFunction(max, UInt32),
  max_concurrency_current    SimpleAggregateFunction(max, UInt32),
  max_env_queue_length       SimpleAggregateFunction(max, UInt32),
  max_env_concurrency        SimpleAggregateFunction(max, UInt32),
  max_oldest_message_age_ms  SimpleAggregateFunction(max, UInt64),

  -- Gauges: the last value in the bucket. Read with max(...).v: `at` is the stream entry id
  -- (milliseconds * 2^20 + sequence), so the newest wins and two events of one millisecond never tie.
  last_queue_length          SimpleAggregateFunction(max, Tuple(at UInt64, v UInt32)),
  last_concurrency_current   SimpleAggregateFunction(max, Tuple(at UInt64, v UInt32)),
  -- -1: no limit.
  last_concurrency_limit     SimpleAggregateFunction(max, Tuple(at UInt64, v Int64)),
  -- When the longest-waiting job became eligible, in ms; 0: nothing waits. A time, not an age:
  -- the age keeps growing while nothing happens.
  last_oldest_message_at     SimpleAggregateFunction(max, Tuple(at UInt64, v UInt64)),
  last_bytes                 SimpleAggregateFunction(max, Tuple(at UInt64, v UInt64)),

  -- Averages: total / count. A wait of 0 ms counts.
  total_wait_duration_ms     UInt64,
  wait_duration_count        UInt64,
  total_run_duration_ms      UInt64,
  run_duration_count         UInt64
)
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, queue_name, bucket_start)
TTL bucket_start + INTERVAL 31 DAY
-- A repeated insert of the same token changes nothing. Needed here and on every view's target.
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per queue, 1 min buckets, kept 31 days. Filled from the 5 s table.';

CREATE TABLE IF NOT EXISTS {database}.queue_metrics_by_hour_v1
(
  organization_id            String,
  project_id                 String,
  environment_id             String,
  queue_name                 String,
  bucket_start               DateTime('UTC'),

  -- Counters. Read with sum(): rows of one bucket add up, merged or not.
  enqueue_count              UInt64,
  dequeue_count              UInt64,
  ack_count                  UInt64,
  nack_count                 UInt64,
  dlq_count                  UInt64,
  ttl_expire_count           UInt64,
  spill_count                UInt64,
  refill_count               UInt64,
  reclaim_count              UInt64,
  release_count              UInt64,
  redrive_count              UInt64,
  cancel_count               UInt64,

  -- Gauges: the highest value in the bucket. Read with max().
  max_queue_length           SimpleAggregateFunction(max, UInt32),
  max_concurrency_current    SimpleAggregateFunction(max, UInt32),
  max_env_queue_length       SimpleAggregateFunction(max, UInt32),
  max_env_concurrency        SimpleAggregateFunction(max, UInt32),
  max_oldest_message_age_ms  SimpleAggregateFunction(max, UInt64),

  -- Gauges: the last value in the bucket. Read with max(...).v: `at` is the stream entry id
  -- (milliseconds * 2^20 + sequence), so the newest wins and two events of one millisecond never tie.
  last_queue_length          SimpleAggregateFunction(max, Tuple(at UInt64, v UInt32)),
  last_concurrency_current   SimpleAggregateFunction(max, Tuple(at UInt64, v UInt32)),
  -- -1: no limit.
  last_concurrency_limit     SimpleAggregateFunction(max, Tuple(at UInt64, v Int64)),
  -- When the longest-waiting job became eligible, in ms; 0: nothing waits. A time, not an age:
  -- the age keeps growing while nothing happens.
  last_oldest_message_at     SimpleAggregateFunction(max, Tuple(at UInt64, v UInt64)),
  last_bytes                 SimpleAggregateFunction(max, Tuple(at UInt64, v UInt64)),

  -- Averages: total / count. A wait of 0 ms counts.
  total_wait_duration_ms     UInt64,
  wait_duration_count        UInt64,
  total_run_duration_ms      UInt64,
  run_duration_count         UInt64
)
ENGINE = SummingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, queue_name, bucket_start)
TTL bucket_start + INTERVAL 400 DAY
-- A repeated insert of the same token changes nothing. Needed here and on every view's target.
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per queue, 1 h buckets, kept 400 days. Filled from the minute table.';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.queue_metrics_by_minute_mv_v1
TO {database}.queue_metrics_by_minute_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  s.queue_name AS queue_name,
  toStartOfMinute(s.bucket_start) AS bucket_start,
  sum(s.enqueue_count) AS enqueue_count,
  sum(s.dequeue_count) AS dequeue_count,
  sum(s.ack_count) AS ack_count,
  sum(s.nack_count) AS nack_count,
  sum(s.dlq_count) AS dlq_count,
  sum(s.ttl_expire_count) AS ttl_expire_count,
  sum(s.spill_count) AS spill_count,
  sum(s.refill_count) AS refill_count,
  sum(s.reclaim_count) AS reclaim_count,
  sum(s.release_count) AS release_count,
  sum(s.redrive_count) AS redrive_count,
  sum(s.cancel_count) AS cancel_count,
  max(s.max_queue_length) AS max_queue_length,
  max(s.max_concurrency_current) AS max_concurrency_current,
  max(s.max_env_queue_length) AS max_env_queue_length,
  max(s.max_env_concurrency) AS max_env_concurrency,
  max(s.max_oldest_message_age_ms) AS max_oldest_message_age_ms,
  max(s.last_queue_length) AS last_queue_length,
  max(s.last_concurrency_current) AS last_concurrency_current,
  max(s.last_concurrency_limit) AS last_concurrency_limit,
  max(s.last_oldest_message_at) AS last_oldest_message_at,
  max(s.last_bytes) AS last_bytes,
  sum(s.total_wait_duration_ms) AS total_wait_duration_ms,
  sum(s.wait_duration_count) AS wait_duration_count,
  sum(s.total_run_duration_ms) AS total_run_duration_ms,
  sum(s.run_duration_count) AS run_duration_count
FROM {database}.queue_metrics_5s_v1 AS s
GROUP BY s.organization_id, s.project_id, s.environment_id, s.queue_name, toStartOfMinute(s.bucket_start);

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.queue_metrics_by_hour_mv_v1
TO {database}.queue_metrics_by_hour_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  s.queue_name AS queue_name,
  toStartOfHour(s.bucket_start) AS bucket_start,
  sum(s.enqueue_count) AS enqueue_count,
  sum(s.dequeue_count) AS dequeue_count,
  sum(s.ack_count) AS ack_count,
  sum(s.nack_count) AS nack_count,
  sum(s.dlq_count) AS dlq_count,
  sum(s.ttl_expire_count) AS ttl_expire_count,
  sum(s.spill_count) AS spill_count,
  sum(s.refill_count) AS refill_count,
  sum(s.reclaim_count) AS reclaim_count,
  sum(s.release_count) AS release_count,
  sum(s.redrive_count) AS redrive_count,
  sum(s.cancel_count) AS cancel_count,
  max(s.max_queue_length) AS max_queue_length,
  max(s.max_concurrency_current) AS max_concurrency_current,
  max(s.max_env_queue_length) AS max_env_queue_length,
  max(s.max_env_concurrency) AS max_env_concurrency,
  max(s.max_oldest_message_age_ms) AS max_oldest_message_age_ms,
  max(s.last_queue_length) AS last_queue_length,
  max(s.last_concurrency_current) AS last_concurrency_current,
  max(s.last_concurrency_limit) AS last_concurrency_limit,
  max(s.last_oldest_message_at) AS last_oldest_message_at,
  max(s.last_bytes) AS last_bytes,
  sum(s.total_wait_duration_ms) AS total_wait_duration_ms,
  sum(s.wait_duration_count) AS wait_duration_count,
  sum(s.total_run_duration_ms) AS total_run_duration_ms,
  sum(s.run_duration_count) AS run_duration_count
FROM {database}.queue_metrics_by_minute_v1 AS s
GROUP BY s.organization_id, s.project_id, s.environment_id, s.queue_name, toStartOfHour(s.bucket_start);

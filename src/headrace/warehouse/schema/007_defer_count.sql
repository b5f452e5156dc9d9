-- Count deferrals: running jobs that were given back without an attempt. Rows written before read as 0. The columns of a
-- table are added before the view that reads them; tables that a view writes come first.
ALTER TABLE {database}.queue_metrics_by_hour_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;
ALTER TABLE {database}.queue_metrics_by_minute_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;
ALTER TABLE {database}.environment_metrics_by_hour_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;
ALTER TABLE {database}.environment_metrics_by_minute_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;
ALTER TABLE {database}.environment_metrics_5s_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;

ALTER TABLE {database}.queue_metrics_by_hour_mv_v1 MODIFY QUERY
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
  sum(s.defer_count) AS defer_count,
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

ALTER TABLE {database}.environment_metrics_by_hour_mv_v1 MODIFY QUERY
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
  sum(s.defer_count) AS defer_count,
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

ALTER TABLE {database}.environment_metrics_by_minute_mv_v1 MODIFY QUERY
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
  sum(s.defer_count) AS defer_count,
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

ALTER TABLE {database}.queue_metrics_5s_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;

ALTER TABLE {database}.queue_metrics_by_minute_mv_v1 MODIFY QUERY
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
  sum(s.defer_count) AS defer_count,
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

ALTER TABLE {database}.environment_metrics_5s_mv_v1 MODIFY QUERY
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
  sum(s.defer_count) AS defer_count,
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

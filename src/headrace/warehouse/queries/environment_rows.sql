-- What a tier holds in [start_s, end_s), merged: one row per environment and bucket.
SELECT
  organization_id,
  project_id,
  environment_id,
  toUnixTimestamp(bucket_start) AS start_s,
  sum(enqueue_count) AS enqueue_count,
  sum(spill_count) AS spill_count,
  sum(refill_count) AS refill_count,
  sum(dequeue_count) AS dequeue_count,
  sum(ack_count) AS ack_count,
  sum(nack_count) AS nack_count,
  sum(dlq_count) AS dlq_count,
  sum(ttl_expire_count) AS ttl_expire_count,
  sum(reclaim_count) AS reclaim_count,
  sum(release_count) AS release_count,
  sum(redrive_count) AS redrive_count,
  sum(cancel_count) AS cancel_count,
  max(max_queue_length) AS max_queue_length,
  max(max_concurrency_current) AS max_concurrency_current,
  sum(total_wait_duration_ms) AS total_wait_duration_ms,
  sum(wait_duration_count) AS wait_duration_count,
  sum(total_run_duration_ms) AS total_run_duration_ms,
  sum(run_duration_count) AS run_duration_count,
  max(last) AS last,
  sumMap(wait_histogram) AS wait_histogram,
  sumMap(run_histogram) AS run_histogram
FROM {table}
WHERE bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current}GROUP BY organization_id, project_id, environment_id, bucket_start

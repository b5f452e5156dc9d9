-- Buckets of one queue that start in [start_s, end_s). Sums and maxima over whatever parts are not merged yet.
SELECT
  toUnixTimestamp(bucket_start) AS start_s,
  sum(enqueue_count) AS enqueue_count,
  sum(dequeue_count) AS dequeue_count,
  sum(ack_count) AS ack_count,
  sum(nack_count) AS nack_count,
  sum(dlq_count) AS dlq_count,
  sum(ttl_expire_count) AS ttl_expire_count,
  sum(reclaim_count) AS reclaim_count,
  sum(release_count) AS release_count,
  sum(redrive_count) AS redrive_count,
  sum(cancel_count) AS cancel_count,
  max(max_queue_length) AS max_depth,
  tupleElement(max(last_queue_length), 'v') AS last_depth,
  max(max_concurrency_current) AS max_running,
  tupleElement(max(last_concurrency_current), 'v') AS last_running,
  tupleElement(max(last_concurrency_limit), 'v') AS limit,
  max(max_oldest_message_age_ms) AS max_age_ms,
  tupleElement(max(last_oldest_message_at), 'v') AS oldest_ms,
  sum(total_wait_duration_ms) AS total_wait_ms,
  sum(wait_duration_count) AS waits
FROM {table}
WHERE organization_id = {org:String}
  AND project_id = {project:String}
  AND environment_id = {env:String}
  AND queue_name = {queue:String}
  AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
GROUP BY bucket_start
ORDER BY bucket_start

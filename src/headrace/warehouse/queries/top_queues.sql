-- The queues of one environment that lead in one number, with their gauges now and what they did in [start_s, end_s).
-- Queues that did nothing are there too, by their gauges; those of which the number is not known are not.
SELECT
  queue_name,
  {value} AS value,
  newest.depth AS depth,
  newest.cold_depth AS cold,
  newest.scheduled AS scheduled,
  newest.running AS running,
  newest.`limit` AS limit,
  newest.bytes AS bytes,
  if(newest.oldest_at > 0, greatest({now_ms:Int64} - toInt64(newest.oldest_at), 0), 0) AS age_ms,
  greatest(max_depth, depth) AS highest_depth,
  enqueue_count,
  dequeue_count,
  ack_count,
  nack_count,
  dlq_count,
  ttl_expire_count,
  wait_ms,
  waits,
  run_ms,
  runs,
  wait_p50,
  wait_p95,
  wait_p99,
  run_p95
FROM
(
  SELECT queue_name, max(last) AS newest
  FROM queue_last_v1
  WHERE organization_id = {org:String} AND project_id = {project:String} AND environment_id = {env:String}
  GROUP BY queue_name
) AS now
LEFT JOIN
(
  WITH
{durations}  max(max_queue_length) AS highest
  SELECT
    queue_name,
{counters}{percentiles}    highest AS max_depth
  FROM {table}
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
    AND
{current}  GROUP BY queue_name
) AS activity USING (queue_name)
WHERE value IS NOT NULL
ORDER BY value DESC, queue_name
LIMIT {limit:UInt32}

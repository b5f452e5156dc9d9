-- Dead jobs of a queue, newest first, after a place in that order. No more than `scan` rows are looked at: those that do
-- not match come with no error and no payload, so that whoever asks can go on after the last of them.
SELECT job_id, buried_ms, matches, CASE WHEN matches THEN task ELSE '' END AS task, flow, flow_type, size, priority,
  attempts, max_attempts, enqueued_ms, CASE WHEN matches THEN error ELSE '' END AS error
FROM (
  SELECT *, (%(task)s = '' OR task = %(task)s) AND (%(error)s = '' OR position(%(error)s IN error) > 0) AS matches
  FROM (
    SELECT * FROM dead_jobs
    WHERE queue_id = %(queue_id)s
      AND (%(from_ms)s::bigint IS NULL OR buried_ms >= %(from_ms)s::bigint)
      AND (%(until_ms)s::bigint IS NULL OR buried_ms <= %(until_ms)s::bigint)
      AND (%(after_ms)s::bigint IS NULL
        OR (buried_ms, job_id COLLATE "C") < (%(after_ms)s::bigint, %(after_id)s::text))
    ORDER BY buried_ms DESC, job_id COLLATE "C" DESC
    LIMIT %(scan)s
  ) looked_at
) judged
ORDER BY buried_ms DESC, job_id COLLATE "C" DESC

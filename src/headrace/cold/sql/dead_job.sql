-- The newest death of one id in one queue, with the beginning of its payload.
SELECT job_id, buried_ms, true AS matches, task, flow, flow_type, size, priority, attempts, max_attempts, enqueued_ms,
  error, substring(payload FROM 1 FOR %(payload_bytes)s) AS payload
FROM dead_jobs WHERE queue_id = %(queue_id)s AND job_id = %(job_id)s
ORDER BY buried_ms DESC
LIMIT 1

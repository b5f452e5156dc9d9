INSERT INTO dead_jobs (queue_id, job_id, task, flow, flow_type, payload, size, priority, attempts, max_attempts,
  enqueued_ms, buried_ms, error)
VALUES (%(queue_id)s, %(job_id)s, %(task)s, %(flow)s, %(flow_type)s, %(payload)s, %(size)s,
  %(priority)s, %(attempts)s, %(max_attempts)s, %(enqueued_ms)s, %(buried_ms)s, %(error)s)
ON CONFLICT DO NOTHING

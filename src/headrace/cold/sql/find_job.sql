SELECT e.seq, q.id AS queue_id, q.org, q.project, q.env, q.queue, e.job_id, e.task, e.flow,
  e.flow_type, e.payload, e.size, e.priority, 0 AS attempts, e.max_attempts, e.enqueued_ms,
  e.due_ms, e.expires_ms, e.delayed, NULL AS error
FROM cold_queue_entries e JOIN cold_queues q ON q.id = e.queue_id
WHERE e.job_id = %(job_id)s AND q.org = %(org)s AND q.project = %(project)s AND q.env = %(env)s
ORDER BY e.seq
LIMIT 1

SELECT d.seq, q.id AS queue_id, q.org, q.project, q.env, q.queue, d.job_id, d.task, d.flow,
  d.flow_type, d.payload, d.size, d.priority, d.attempts, d.max_attempts, d.enqueued_ms,
  NULL::double precision AS due_ms, NULL::bigint AS expires_ms, false AS delayed, d.error
FROM dead_jobs d JOIN cold_queues q ON q.id = d.queue_id
WHERE d.job_id = %(job_id)s AND q.org = %(org)s AND q.project = %(project)s AND q.env = %(env)s
ORDER BY d.buried_ms DESC
LIMIT 1

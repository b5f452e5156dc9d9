COPY cold_queue_entries (queue_id, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms,
  due_ms, expires_ms, delayed)
FROM STDIN (FORMAT binary)

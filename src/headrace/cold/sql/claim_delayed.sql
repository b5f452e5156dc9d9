-- Rows that are due soon, next first, past those that are placed in Valkey already.
SELECT seq, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms, due_ms, expires_ms, delayed
FROM (
  SELECT *, sum(size) OVER (ORDER BY due_ms, seq ROWS UNBOUNDED PRECEDING) - size AS before
  FROM (
    SELECT * FROM cold_queue_entries
    WHERE queue_id = %(queue_id)s AND delayed AND due_ms <= %(until)s AND seq <> ALL(%(placed)s::bigint[])
    ORDER BY due_ms
    LIMIT %(most)s
  ) next
) measured
WHERE before < %(bytes)s
ORDER BY due_ms, seq

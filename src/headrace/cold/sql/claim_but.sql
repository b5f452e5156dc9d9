-- As claim.sql, past rows that are placed in Valkey already.
SELECT seq, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms, due_ms, expires_ms, delayed
FROM (
  SELECT *, sum(size) OVER (ORDER BY priority DESC, due_ms, seq ROWS UNBOUNDED PRECEDING) - size AS before
  FROM (
    SELECT * FROM cold_queue_entries
    WHERE queue_id = %(queue_id)s AND NOT delayed AND seq <> ALL(%(placed)s::bigint[])
    ORDER BY priority DESC, due_ms, seq
    LIMIT %(most)s
  ) next
) measured
WHERE before < %(bytes)s
ORDER BY priority DESC, due_ms, seq

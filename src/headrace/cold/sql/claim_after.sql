-- As claim.sql, behind a position: the rest of its priority, then the lower ones. Each is one walk along the index.
SELECT seq, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms, due_ms, expires_ms, delayed
FROM (
  SELECT *, sum(size) OVER (ORDER BY priority DESC, due_ms, seq ROWS UNBOUNDED PRECEDING) - size AS before
  FROM (
    SELECT * FROM (
      (
        SELECT * FROM cold_queue_entries
        WHERE queue_id = %(queue_id)s AND NOT delayed AND priority = %(priority)s
          AND (due_ms, seq) > (%(due_ms)s::double precision, %(seq)s::bigint)
        ORDER BY priority DESC, due_ms, seq
        LIMIT %(most)s
      )
      UNION ALL
      (
        SELECT * FROM cold_queue_entries
        WHERE queue_id = %(queue_id)s AND NOT delayed AND priority < %(priority)s
        ORDER BY priority DESC, due_ms, seq
        LIMIT %(most)s
      )
    ) both_parts
    ORDER BY priority DESC, due_ms, seq
    LIMIT %(most)s
  ) next
) measured
WHERE before < %(bytes)s
ORDER BY priority DESC, due_ms, seq

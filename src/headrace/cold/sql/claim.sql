-- The next rows, up to a number and about a size, in the order in which they shall run. One is given however large it is.
-- One walk along the index and no join, so that there is no other plan to choose.
SELECT seq, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms, due_ms, expires_ms, delayed
FROM (
  SELECT *, sum(size) OVER (ORDER BY priority DESC, due_ms, seq ROWS UNBOUNDED PRECEDING) - size AS before
  FROM (
    SELECT * FROM cold_queue_entries
    WHERE queue_id = %(queue_id)s AND NOT delayed
    ORDER BY priority DESC, due_ms, seq
    LIMIT %(most)s
  ) next
) measured
WHERE before < %(bytes)s
ORDER BY priority DESC, due_ms, seq

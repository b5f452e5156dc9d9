-- When the longest-waiting job became eligible: the first one of each priority, and of those the oldest.
WITH RECURSIVE heads AS (
  (SELECT priority, due_ms FROM cold_queue_entries WHERE queue_id = %(queue_id)s AND NOT delayed
   ORDER BY priority DESC, due_ms, seq LIMIT 1)
  UNION ALL
  SELECT next.priority, next.due_ms FROM heads, LATERAL (
    SELECT e.priority, e.due_ms FROM cold_queue_entries e
    WHERE e.queue_id = %(queue_id)s AND NOT e.delayed AND e.priority < heads.priority
    ORDER BY e.priority DESC, e.due_ms, e.seq LIMIT 1
  ) next
)
SELECT min(due_ms) FROM heads

-- When delayed rows are due, for each queue: those due until then, the first `most` of each queue.
SELECT q.org, q.project, q.env, q.queue, e.due_ms
FROM cold_queues q
CROSS JOIN LATERAL (
  SELECT due_ms FROM cold_queue_entries
  WHERE queue_id = q.id AND delayed AND due_ms <= %(until)s
  ORDER BY due_ms
  LIMIT %(most)s
) e
WHERE q.delayed > 0

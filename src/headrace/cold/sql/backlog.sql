-- The queues of a shard that have something to do here: rows that wait, are due soon, or have outlived their TTL. Only
-- the first row of each is looked at.
SELECT id, org, project, env, queue FROM cold_queues q
WHERE shard = %(shard)s AND (
  waiting > 0
  OR (delayed > 0 AND %(until)s >= (
    SELECT due_ms FROM cold_queue_entries e WHERE e.queue_id = q.id AND e.delayed ORDER BY due_ms LIMIT 1))
  OR (delayed > 0 AND %(now)s >= (
    SELECT expires_ms FROM cold_queue_entries e WHERE e.queue_id = q.id AND expires_ms IS NOT NULL
    ORDER BY expires_ms LIMIT 1))
)
ORDER BY id

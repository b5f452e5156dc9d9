-- The queues of a shard whose longest-dead job was buried before then.
SELECT id AS queue_id, org, project, env, queue FROM cold_queues q
WHERE shard = %(shard)s AND dead > 0 AND %(before_ms)s::bigint > (
  SELECT buried_ms FROM dead_jobs d WHERE d.queue_id = q.id ORDER BY buried_ms, seq LIMIT 1)
ORDER BY id

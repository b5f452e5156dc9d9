-- Hold the queue's row in cold_movers; version and names are those of the queue.
SELECT q.version, q.org, q.project, q.env, q.queue FROM cold_movers m JOIN cold_queues q ON q.id = m.queue_id
WHERE m.queue_id = %(queue_id)s FOR UPDATE OF m

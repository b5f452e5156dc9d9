-- Hold the queue's row in cold_movers; the version is that of the queue.
SELECT q.version FROM cold_movers m JOIN cold_queues q ON q.id = m.queue_id
WHERE m.queue_id = %(queue_id)s FOR UPDATE OF m

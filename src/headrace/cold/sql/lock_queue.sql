SELECT epoch FROM cold_queues WHERE id = %(queue_id)s FOR UPDATE

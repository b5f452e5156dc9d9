SELECT epoch, org, project, env, queue FROM cold_queues WHERE id = %(queue_id)s

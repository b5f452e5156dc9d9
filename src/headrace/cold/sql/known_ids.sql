SELECT job_id FROM cold_queue_entries WHERE queue_id = %(queue_id)s AND job_id = ANY(%(ids)s)

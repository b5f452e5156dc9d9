SELECT id FROM cold_queues WHERE org = %(org)s AND project = %(project)s AND env = %(env)s AND queue = %(queue)s

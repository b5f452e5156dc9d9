SELECT value FROM queue_settings
WHERE org = %(org)s AND project = %(project)s AND env = %(env)s AND queue = %(queue)s AND name = %(name)s
FOR UPDATE

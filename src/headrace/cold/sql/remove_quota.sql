DELETE FROM quotas WHERE org = %(org)s AND project = %(project)s AND env = %(env)s AND name = %(name)s

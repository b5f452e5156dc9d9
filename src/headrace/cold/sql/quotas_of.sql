SELECT name, value FROM quotas WHERE org = %(org)s AND project = %(project)s AND env = %(env)s

DELETE FROM quota_shares WHERE org = %(org)s AND project = %(project)s AND env = %(env)s AND name = %(name)s

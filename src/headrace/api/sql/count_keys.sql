-- Keys that can be used and reach no further than this tenant.
SELECT count(*) FROM api_keys
WHERE org = %(org)s AND (%(project)s = '' OR project = %(project)s) AND (%(env)s = '' OR env = %(env)s)
  AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())

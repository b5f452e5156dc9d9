SELECT id FROM api_keys WHERE name = %(name)s AND revoked_at IS NULL

SELECT id, name, hash, org, project, env, level, expires_at FROM api_keys
WHERE id = %(id)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())

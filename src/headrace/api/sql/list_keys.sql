SELECT id, name, org, project, env, level, created_at, last_used_at, expires_at, revoked_at
FROM api_keys ORDER BY created_at, id

INSERT INTO api_keys (id, name, hash, org, project, env, level, expires_at)
VALUES (%(id)s, %(name)s, %(hash)s, %(org)s, %(project)s, %(env)s, %(level)s,
  now() + make_interval(secs => %(expires_s)s::double precision)) -- NULL: never
RETURNING expires_at

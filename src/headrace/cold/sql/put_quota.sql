INSERT INTO quotas (org, project, env, name, value) VALUES (%(org)s, %(project)s, %(env)s, %(name)s, %(value)s)
ON CONFLICT (org, project, env, name) DO UPDATE SET value = excluded.value, changed_at = now()

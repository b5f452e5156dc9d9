-- A setting that was taken back stays as '': whoever restores Valkey's copy must know that it is to be gone there.
INSERT INTO queue_settings (org, project, env, queue, name, value)
VALUES (%(org)s, %(project)s, %(env)s, %(queue)s, %(name)s, %(value)s)
ON CONFLICT (org, project, env, queue, name) DO UPDATE SET value = excluded.value, changed_at = now()

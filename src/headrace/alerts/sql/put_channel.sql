INSERT INTO alert_channels (id, org, project, env, name, type, config, target, health, health_by_operator, enabled)
VALUES (%(id)s, %(org)s, %(project)s, %(env)s, %(name)s, %(type)s, %(config)s, %(target)s, %(health)s, %(health)s, %(enabled)s)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, type = excluded.type, config = excluded.config, target = excluded.target,
  health = excluded.health, health_by_operator = excluded.health_by_operator,
  enabled = excluded.enabled, failures = 0, retry_at = NULL, last_error = NULL

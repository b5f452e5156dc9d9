SELECT id, org, project, env, name, type, config, target, health_by_operator AS health, enabled, failures, retry_at, last_error, last_sent
FROM alert_channels
WHERE id = %(id)s
FOR UPDATE

SELECT id, org, project, env, name, type, config, target, health_by_operator AS health, enabled, failures, retry_at, last_error, last_sent
FROM alert_channels
WHERE (%(org)s::text IS NULL OR org = %(org)s)
  AND (%(project)s::text IS NULL OR project = %(project)s)
  AND (%(env)s::text IS NULL OR env = %(env)s)
ORDER BY org, project, env, name

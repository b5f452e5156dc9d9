SELECT id, rule_id, rule, org, project, env, queue, severity, channels, value, fired_at, acknowledged_at, acknowledged_by, resolved_at,
  reason
FROM alert_incidents
WHERE (%(org)s::text IS NULL OR org = %(org)s)
  AND (%(project)s::text IS NULL OR project = %(project)s)
  AND (%(env)s::text IS NULL OR env = %(env)s)
  AND (%(open)s::boolean IS NULL OR (resolved_at IS NULL) = %(open)s)
  AND (%(before_at)s::timestamptz IS NULL OR (fired_at, id) < (%(before_at)s, %(before_id)s))
ORDER BY fired_at DESC, id DESC
LIMIT %(limit)s

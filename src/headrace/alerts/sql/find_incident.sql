SELECT id, rule_id, rule, org, project, env, queue, severity, channels, value, fired_at, acknowledged_at, acknowledged_by, resolved_at,
  reason
FROM alert_incidents
WHERE id = %(id)s

SELECT id, org, project, env, rule_id, queue, reason, made_by, starts_at, ends_at
FROM alert_silences
WHERE id = %(id)s

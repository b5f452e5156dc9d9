INSERT INTO alert_incidents (id, rule_id, rule, org, project, env, queue, severity, channels, value, fired_at)
VALUES (%(id)s, %(rule_id)s, %(rule)s, %(org)s, %(project)s, %(env)s, %(queue)s, %(severity)s, %(channels)s, %(value)s,
  to_timestamp(%(at_ms)s / 1000.0))
ON CONFLICT (id) DO NOTHING

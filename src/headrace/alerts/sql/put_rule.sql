INSERT INTO alert_rules (id, org, project, env, name, metric, operator, threshold, queue, percentile, window_s, cooldown_s,
  for_s, severity, enabled, auto_resolve, channels)
VALUES (%(id)s, %(org)s, %(project)s, %(env)s, %(name)s, %(metric)s, %(operator)s, %(threshold)s, %(queue)s, %(percentile)s,
  %(window_s)s, %(cooldown_s)s, %(for_s)s, %(severity)s, %(enabled)s, %(auto_resolve)s, %(channels)s)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, metric = excluded.metric, operator = excluded.operator, threshold = excluded.threshold,
  queue = excluded.queue, percentile = excluded.percentile, window_s = excluded.window_s,
  cooldown_s = excluded.cooldown_s, for_s = excluded.for_s, severity = excluded.severity, enabled = excluded.enabled,
  auto_resolve = excluded.auto_resolve, channels = excluded.channels, updated_at = now()

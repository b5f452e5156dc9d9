SELECT id, org, project, env, name, metric, operator, threshold, queue, percentile, window_s, cooldown_s, for_s, severity, enabled,
  auto_resolve, channels, (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
FROM alert_rules
WHERE id = %(id)s
FOR UPDATE

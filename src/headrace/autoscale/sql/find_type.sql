SELECT name, org, project, env, config, state, workers, wanted, known, sentence, decided_at,
  fresh_until > clock_timestamp() AS fresh
FROM autoscale_types
WHERE name = %(name)s

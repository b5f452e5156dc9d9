SELECT id, org, project, env, rule_id, queue, reason, made_by, starts_at, ends_at
FROM alert_silences
WHERE (%(org)s::text IS NULL OR org = %(org)s)
  AND (%(project)s::text IS NULL OR project = %(project)s)
  AND (%(env)s::text IS NULL OR env = %(env)s)
  AND ends_at > coalesce(%(at)s::timestamptz, now())
ORDER BY ends_at, id

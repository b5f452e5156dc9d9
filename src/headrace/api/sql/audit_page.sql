-- Newest first, of what a scope covers.
SELECT id, at, key_id, key_name, org, project, env, queue, action, details, outcome, address FROM audit_log
WHERE (%(before)s::bigint IS NULL OR id < %(before)s)
  AND (%(org)s::text IS NULL OR org = %(org)s)
  AND (%(project)s::text IS NULL OR project = %(project)s)
  AND (%(env)s::text IS NULL OR env = %(env)s)
ORDER BY id DESC LIMIT %(limit)s

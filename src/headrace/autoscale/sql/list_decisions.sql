SELECT id, type, decided_at, verb, current, wanted, known, sentence, inputs
FROM autoscale_decisions
WHERE type = %(type)s
  AND (%(anybodys)s OR (org, project, env) IS NOT DISTINCT FROM (%(org)s::text, %(project)s::text, %(env)s::text))
  AND (%(before)s::bigint IS NULL OR id < %(before)s)
  AND (NOT %(changes)s OR verb <> 'hold')
ORDER BY id DESC
LIMIT %(limit)s

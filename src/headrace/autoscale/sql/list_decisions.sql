SELECT id, type, decided_at, verb, current, wanted, known, sentence, inputs
FROM autoscale_decisions
WHERE type = %(type)s
  AND (%(before)s::bigint IS NULL OR id < %(before)s)
  AND (NOT %(changes)s OR verb <> 'hold')
ORDER BY id DESC
LIMIT %(limit)s

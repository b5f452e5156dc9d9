-- Worker types -------------------------------------------------------------------------------------------------------

-- name: list_types
-- Return all worker types with their last decision, ordered by name. fresh: recent enough to be acted upon.
SELECT name, org, project, env, config, state, workers, wanted, known, sentence, decided_at,
  fresh_until > clock_timestamp() AS fresh
FROM autoscale_types
ORDER BY name

-- name: find_type
-- Return one worker type, with the columns of list_types.
SELECT name, org, project, env, config, state, workers, wanted, known, sentence, decided_at,
  fresh_until > clock_timestamp() AS fresh
FROM autoscale_types
WHERE name = %(name)s

-- name: put_type
-- Store a worker type with the decision of `at_ms`, which is fresh for `fresh_s` seconds.
INSERT INTO autoscale_types (name, org, project, env, config, state, workers, wanted, known, sentence, decided_at, fresh_until)
VALUES (%(name)s, %(org)s, %(project)s, %(env)s, %(config)s, %(state)s, %(workers)s, %(wanted)s, %(known)s, %(sentence)s,
  to_timestamp(%(at_ms)s / 1000.0), clock_timestamp() + %(fresh_s)s * interval '1 second')
ON CONFLICT (name) DO UPDATE
SET org = excluded.org, project = excluded.project, env = excluded.env, config = excluded.config, state = excluded.state,
  workers = excluded.workers, wanted = excluded.wanted, known = excluded.known, sentence = excluded.sentence,
  decided_at = excluded.decided_at, fresh_until = excluded.fresh_until

-- name: delete_types_except
-- Delete all worker types but `names`.
DELETE FROM autoscale_types WHERE NOT name = ANY(%(names)s)

-- Decisions ----------------------------------------------------------------------------------------------------------

-- name: add_decision
-- Add the decision of `at_ms` about a worker type.
INSERT INTO autoscale_decisions (type, org, project, env, decided_at, verb, current, wanted, known, sentence, inputs)
VALUES (%(type)s, %(org)s, %(project)s, %(env)s, to_timestamp(%(at_ms)s / 1000.0), %(verb)s, %(current)s, %(wanted)s,
  %(known)s, %(sentence)s, %(inputs)s)

-- name: list_decisions
-- Return decisions about a worker type, newest first: at most `limit` with an id below `before` (NULL: from the
-- newest), with `changes` only those that changed the number of workers. Unless `any_tenant`, only those that were made
-- while the type belonged to `org`, `project`, `env` (NULL is a value of its own): a name may be given to another
-- tenant.
SELECT id, type, decided_at, verb, current, wanted, known, sentence, inputs
FROM autoscale_decisions
WHERE type = %(type)s
  AND (%(any_tenant)s OR (org, project, env) IS NOT DISTINCT FROM (%(org)s::text, %(project)s::text, %(env)s::text))
  AND (%(before)s::bigint IS NULL OR id < %(before)s)
  AND (NOT %(changes)s OR verb <> 'hold')
ORDER BY id DESC
LIMIT %(limit)s

-- name: purge_decisions
-- Delete decisions older than `keep_s` seconds.
DELETE FROM autoscale_decisions WHERE decided_at < now() - %(keep_s)s * interval '1 second'

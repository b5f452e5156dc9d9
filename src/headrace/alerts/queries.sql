-- Rules --------------------------------------------------------------------------------------------------------------

-- name: list_rules
-- Return the rules of tenants with their times, ordered by tenant and name. last_fired_at: the newest incident, also
-- one that was deleted after its retention; NULL: none. `org`, `project` and `env` select tenants; NULL matches all.
SELECT id, org, project, env, name, metric, operator, threshold, queue, percentile, window_s, cooldown_s, for_s, severity, enabled,
  auto_resolve, channels, within_ms, objective, (extract(epoch FROM created_at) * 1000)::bigint AS created_ms,
  created_at, updated_at, greatest(
    (SELECT max(i.fired_at) FROM alert_incidents AS i WHERE i.rule_id = alert_rules.id),
    (SELECT f.fired_at FROM alert_last_firings AS f WHERE f.rule_id = alert_rules.id)
  ) AS last_fired_at
FROM alert_rules
WHERE (%(org)s::text IS NULL OR org = %(org)s)
  AND (%(project)s::text IS NULL OR project = %(project)s)
  AND (%(env)s::text IS NULL OR env = %(env)s)
ORDER BY org, project, env, name

-- name: list_enabled_rules
-- Return all rules that are enabled, ordered by tenant.
SELECT id, org, project, env, name, metric, operator, threshold, queue, percentile, window_s, cooldown_s, for_s, severity, enabled,
  auto_resolve, channels, within_ms, objective, (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
FROM alert_rules
WHERE enabled
ORDER BY org, project, env, id

-- name: find_rule
-- Return one rule with its times, as list_rules does.
SELECT id, org, project, env, name, metric, operator, threshold, queue, percentile, window_s, cooldown_s, for_s, severity, enabled,
  auto_resolve, channels, within_ms, objective, (extract(epoch FROM created_at) * 1000)::bigint AS created_ms,
  created_at, updated_at, greatest(
    (SELECT max(i.fired_at) FROM alert_incidents AS i WHERE i.rule_id = alert_rules.id),
    (SELECT f.fired_at FROM alert_last_firings AS f WHERE f.rule_id = alert_rules.id)
  ) AS last_fired_at
FROM alert_rules
WHERE id = %(id)s

-- name: lock_rule
-- Return one rule, and lock it until the transaction ends.
SELECT id, org, project, env, name, metric, operator, threshold, queue, percentile, window_s, cooldown_s, for_s, severity, enabled,
  auto_resolve, channels, within_ms, objective, (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
FROM alert_rules
WHERE id = %(id)s
FOR UPDATE

-- name: put_rule
-- Add a rule, or change the one with this id. `window_s`, `cooldown_s` and `for_s` are seconds.
INSERT INTO alert_rules (id, org, project, env, name, metric, operator, threshold, queue, percentile, window_s, cooldown_s,
  for_s, severity, enabled, auto_resolve, channels, within_ms, objective)
VALUES (%(id)s, %(org)s, %(project)s, %(env)s, %(name)s, %(metric)s, %(operator)s, %(threshold)s, %(queue)s, %(percentile)s,
  %(window_s)s, %(cooldown_s)s, %(for_s)s, %(severity)s, %(enabled)s, %(auto_resolve)s, %(channels)s,
  %(within_ms)s, %(objective)s)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, metric = excluded.metric, operator = excluded.operator, threshold = excluded.threshold,
  queue = excluded.queue, percentile = excluded.percentile, window_s = excluded.window_s,
  cooldown_s = excluded.cooldown_s, for_s = excluded.for_s, severity = excluded.severity, enabled = excluded.enabled,
  auto_resolve = excluded.auto_resolve, channels = excluded.channels, within_ms = excluded.within_ms,
  objective = excluded.objective, updated_at = now()

-- name: delete_rule
-- Delete a rule; returns its id if it existed.
DELETE FROM alert_rules WHERE id = %(id)s RETURNING id

-- name: count_rules_and_channels
-- Count the rules and the channels of a tenant. An empty `project` or `env` matches all.
SELECT
  (SELECT count(*) FROM alert_rules
   WHERE org = %(org)s AND (%(project)s = '' OR project = %(project)s) AND (%(env)s = '' OR env = %(env)s)),
  (SELECT count(*) FROM alert_channels
   WHERE org = %(org)s AND (%(project)s = '' OR project = %(project)s) AND (%(env)s = '' OR env = %(env)s))

-- name: read_revision
-- Return a number that grows with every change of a rule or channel.
SELECT revision FROM alert_revision

-- name: increment_revision
-- Count a change of a rule or channel.
UPDATE alert_revision SET revision = revision + 1

-- Channels -----------------------------------------------------------------------------------------------------------

-- name: list_channels
-- Return the channels of tenants, ordered by tenant and name. `org`, `project` and `env` select tenants; NULL matches
-- all.
SELECT id, org, project, env, name, type, config, target, health_by_operator AS health, enabled, failures, retry_at, last_error, last_sent
FROM alert_channels
WHERE (%(org)s::text IS NULL OR org = %(org)s)
  AND (%(project)s::text IS NULL OR project = %(project)s)
  AND (%(env)s::text IS NULL OR env = %(env)s)
ORDER BY org, project, env, name

-- name: find_channel
-- Return one channel.
SELECT id, org, project, env, name, type, config, target, health_by_operator AS health, enabled, failures, retry_at, last_error, last_sent
FROM alert_channels
WHERE id = %(id)s

-- name: lock_channel
-- Return one channel, and lock it until the transaction ends.
SELECT id, org, project, env, name, type, config, target, health_by_operator AS health, enabled, failures, retry_at, last_error, last_sent
FROM alert_channels
WHERE id = %(id)s
FOR UPDATE

-- name: put_channel
-- Add a channel, or change the one with this id and forget its failures. health is also written for processes of older
-- versions, which read it.
INSERT INTO alert_channels (id, org, project, env, name, type, config, target, health, health_by_operator, enabled)
VALUES (%(id)s, %(org)s, %(project)s, %(env)s, %(name)s, %(type)s, %(config)s, %(target)s, %(health)s, %(health)s, %(enabled)s)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, type = excluded.type, config = excluded.config, target = excluded.target,
  health = excluded.health, health_by_operator = excluded.health_by_operator,
  enabled = excluded.enabled, failures = 0, retry_at = NULL, last_error = NULL

-- name: delete_channel
-- Delete a channel with its messages; returns its id if it existed.
DELETE FROM alert_channels WHERE id = %(id)s RETURNING id

-- name: retry_channel
-- Let a channel be tried again at once.
UPDATE alert_channels SET retry_at = NULL WHERE id = %(id)s

-- name: list_enabled_channels
-- Return the ids of enabled channels, and whether an operator lets them receive alerts about Headrace's own health.
SELECT id, health_by_operator FROM alert_channels WHERE enabled

-- name: list_failing_channels
-- Return the enabled channels whose last `failures` deliveries, or more, all failed.
SELECT org, project, env, name FROM alert_channels WHERE enabled AND failures >= %(failures)s ORDER BY 1, 2, 3, 4

-- Silences -----------------------------------------------------------------------------------------------------------

-- name: add_silence
-- Add a silence; a NULL `rule_id` or `queue` matches all of them.
INSERT INTO alert_silences (id, org, project, env, rule_id, queue, reason, made_by, starts_at, ends_at)
VALUES (%(id)s, %(org)s, %(project)s, %(env)s, %(rule_id)s, %(queue)s, %(reason)s, %(made_by)s, %(starts_at)s, %(ends_at)s)

-- name: list_silences
-- Return the silences of tenants that end after `at` (NULL: now), by their end. `org`, `project` and `env` select
-- tenants; NULL matches all.
SELECT id, org, project, env, rule_id, queue, reason, made_by, starts_at, ends_at
FROM alert_silences
WHERE (%(org)s::text IS NULL OR org = %(org)s)
  AND (%(project)s::text IS NULL OR project = %(project)s)
  AND (%(env)s::text IS NULL OR env = %(env)s)
  AND ends_at > coalesce(%(at)s::timestamptz, now())
ORDER BY ends_at, id

-- name: find_silence
-- Return one silence.
SELECT id, org, project, env, rule_id, queue, reason, made_by, starts_at, ends_at
FROM alert_silences
WHERE id = %(id)s

-- name: end_silence
-- End a silence now; returns its id, or no row if it is over or does not exist.
UPDATE alert_silences SET ends_at = greatest(now(), starts_at + interval '1 microsecond')
WHERE id = %(id)s AND ends_at > now()
RETURNING id

-- Incidents ----------------------------------------------------------------------------------------------------------

-- name: list_incidents
-- Return incidents of tenants, newest first, with the value of the last evaluation while they are open: at most `limit`, before the position `before_at`, `before_id` (NULL: from
-- the newest), resolved or not as `open` says (NULL: both). `org`, `project` and `env` select tenants; NULL matches
-- all.
SELECT i.id, i.rule_id, i.rule, i.org, i.project, i.env, i.queue, i.severity, i.channels, i.value, i.fired_at, i.acknowledged_at,
  i.acknowledged_by, i.resolved_at, i.reason, s.value AS current_value, to_timestamp(s.measured_ms / 1000.0) AS current_at
FROM alert_incidents AS i
LEFT JOIN alert_states AS s ON s.rule_id = i.rule_id AND s.queue = i.queue AND s.incident = i.id
WHERE (%(org)s::text IS NULL OR i.org = %(org)s)
  AND (%(project)s::text IS NULL OR i.project = %(project)s)
  AND (%(env)s::text IS NULL OR i.env = %(env)s)
  AND (%(open)s::boolean IS NULL OR (i.resolved_at IS NULL) = %(open)s)
  AND (%(before_at)s::timestamptz IS NULL OR (i.fired_at, i.id) < (%(before_at)s, %(before_id)s))
ORDER BY i.fired_at DESC, i.id DESC
LIMIT %(limit)s

-- name: find_incident
-- Return one incident, with the value of the last evaluation while it is open.
SELECT i.id, i.rule_id, i.rule, i.org, i.project, i.env, i.queue, i.severity, i.channels, i.value, i.fired_at, i.acknowledged_at,
  i.acknowledged_by, i.resolved_at, i.reason, s.value AS current_value, to_timestamp(s.measured_ms / 1000.0) AS current_at
FROM alert_incidents AS i
LEFT JOIN alert_states AS s ON s.rule_id = i.rule_id AND s.queue = i.queue AND s.incident = i.id
WHERE i.id = %(id)s

-- name: find_incident_rule
-- Return the rule of an incident as it was when it fired, and the channels of the incident.
SELECT rule, channels FROM alert_incidents WHERE id = %(id)s

-- name: list_incident_channels
-- Return the channels of each of the incidents `ids`.
SELECT id, channels FROM alert_incidents WHERE id = ANY(%(ids)s)

-- name: open_incident
-- Add an incident that fired at `at_ms`. Does nothing if it exists.
INSERT INTO alert_incidents (id, rule_id, rule, org, project, env, queue, severity, channels, value, fired_at)
VALUES (%(id)s, %(rule_id)s, %(rule)s, %(org)s, %(project)s, %(env)s, %(queue)s, %(severity)s, %(channels)s, %(value)s,
  to_timestamp(%(at_ms)s / 1000.0))
ON CONFLICT (id) DO NOTHING

-- name: close_incident
-- Resolve an incident at `at_ms`; a NULL `reason`: by itself.
UPDATE alert_incidents SET resolved_at = to_timestamp(%(at_ms)s / 1000.0), reason = %(reason)s WHERE id = %(id)s

-- name: acknowledge_incident
-- Record who acknowledged an incident; returns its id, or no row if it is acknowledged or resolved already.
UPDATE alert_incidents
SET acknowledged_at = now(), acknowledged_by = %(by)s
WHERE id = %(id)s AND acknowledged_at IS NULL AND resolved_at IS NULL
RETURNING id

-- name: list_incident_transitions
-- Return the transitions of one incident, oldest first.
SELECT id, rule_id, queue, incident, kind, at, value, told FROM alert_transitions WHERE incident = %(id)s ORDER BY at, id

-- name: list_incident_deliveries
-- Return the messages about one incident and their delivery, in the order in which they were written.
SELECT m.id, m.channel_id, c.name AS channel, m.message ->> 'kind' AS kind, m.attempts, m.created_at, m.delivered_at,
  m.given_up_at, m.error
FROM alert_outbox AS m
JOIN alert_channels AS c ON c.id = m.channel_id
WHERE m.message -> 'transitions' @> jsonb_build_array(jsonb_build_object('incident', %(id)s::text))
ORDER BY m.seq

-- States and transitions, written by the evaluator -------------------------------------------------------------------

-- name: lock_states
-- Return the states of the rules `rules`, per queue, and lock them until the transaction ends.
SELECT rule_id, queue, phase, since_ms, clean_ms, fired_ms, incident, told, value, measured_ms
FROM alert_states
WHERE rule_id = ANY(%(rules)s)
ORDER BY rule_id, queue
FOR UPDATE

-- name: lock_orphaned_states
-- Return at most `limit` states of rules that were removed or disabled, and lock them until the transaction ends.
-- States of Headrace's own health have no rule and are left out.
SELECT s.rule_id, s.queue, s.phase, s.since_ms, s.clean_ms, s.fired_ms, s.incident, s.told, s.value, s.measured_ms
FROM alert_states AS s
LEFT JOIN alert_rules AS r ON r.id = s.rule_id
WHERE (r.id IS NULL OR NOT r.enabled) AND s.rule_id NOT LIKE 'health:%%'
ORDER BY s.rule_id, s.queue
LIMIT %(limit)s
FOR UPDATE OF s

-- name: put_state
-- Store the state of a rule for a queue; times are ms.
INSERT INTO alert_states (rule_id, queue, phase, since_ms, clean_ms, fired_ms, incident, told, value, measured_ms)
VALUES (%(rule_id)s, %(queue)s, %(phase)s, %(since_ms)s, %(clean_ms)s, %(fired_ms)s, %(incident)s, %(told)s, %(value)s,
  %(measured_ms)s)
ON CONFLICT (rule_id, queue) DO UPDATE
SET phase = excluded.phase, since_ms = excluded.since_ms, clean_ms = excluded.clean_ms, fired_ms = excluded.fired_ms,
  incident = excluded.incident, told = excluded.told, value = excluded.value, measured_ms = excluded.measured_ms

-- name: delete_state
-- Delete the state of a rule for a queue: the rule is ok, and there is nothing to remember.
DELETE FROM alert_states WHERE rule_id = %(rule_id)s AND queue = %(queue)s

-- name: add_transition
-- Add a transition that happened at `at_ms`. Does nothing if it exists.
INSERT INTO alert_transitions (id, rule_id, queue, incident, kind, at, value, told)
VALUES (%(id)s, %(rule_id)s, %(queue)s, %(incident)s, %(kind)s, to_timestamp(%(at_ms)s / 1000.0), %(value)s, %(told)s)
ON CONFLICT (id) DO NOTHING

-- Messages -----------------------------------------------------------------------------------------------------------

-- name: add_message
-- Add a message for a channel. Does nothing if the channel was removed.
INSERT INTO alert_outbox (id, channel_id, message)
SELECT %(id)s, id, %(message)s FROM alert_channels WHERE id = %(channel_id)s

-- name: list_due_messages
-- Return the oldest undelivered message of each enabled channel whose retry time has come, without the channels
-- `in_flight`. age_s is its age in seconds.
SELECT DISTINCT ON (m.channel_id)
  m.seq, m.id, m.message, m.attempts, c.id AS channel_id, c.org, c.project, c.env, c.type, c.config, c.failures,
  extract(epoch FROM clock_timestamp() - m.created_at)::float8 AS age_s
FROM alert_outbox AS m
JOIN alert_channels AS c ON c.id = m.channel_id
WHERE m.delivered_at IS NULL
  AND m.given_up_at IS NULL
  AND c.enabled
  AND (c.retry_at IS NULL OR c.retry_at <= clock_timestamp())
  AND NOT m.channel_id = ANY(%(in_flight)s)
ORDER BY m.channel_id, m.seq

-- name: mark_delivered
-- Record that a message was delivered, and that its channel works. `note`: what the receiver reported, such as
-- recipients that were refused (NULL: nothing).
WITH noted AS (
  UPDATE alert_outbox SET delivered_at = clock_timestamp(), attempts = attempts + 1, error = %(note)s WHERE seq = %(seq)s
)
UPDATE alert_channels SET failures = 0, retry_at = NULL, last_error = %(note)s, last_sent = clock_timestamp()
WHERE id = %(channel_id)s

-- name: mark_failed
-- Record a failed delivery with its error; the channel is tried again after `wait_s` seconds. `given_up`: the message
-- is not sent again.
WITH noted AS (
  UPDATE alert_outbox
  SET attempts = attempts + 1, error = %(error)s,
    given_up_at = CASE WHEN %(given_up)s THEN clock_timestamp() END
  WHERE seq = %(seq)s AND delivered_at IS NULL
)
UPDATE alert_channels
SET failures = failures + 1, last_error = %(error)s,
  retry_at = clock_timestamp() + %(wait_s)s * interval '1 second'
WHERE id = %(channel_id)s

-- name: find_message_result
-- Return whether a message was delivered, and the error of its last delivery.
SELECT delivered_at IS NOT NULL AS delivered, error FROM alert_outbox WHERE id = %(id)s

-- Problems that processes report, for incidents about Headrace's own health ------------------------------------------

-- name: put_problem
-- Store the problem of `source`, or report it again.
INSERT INTO alert_problems (source, detail) VALUES (%(source)s, %(detail)s)
ON CONFLICT (source) DO UPDATE SET detail = excluded.detail, reported_at = clock_timestamp()

-- name: delete_problem
-- Delete the problem of `source`: it is over.
DELETE FROM alert_problems WHERE source = %(source)s

-- name: list_recent_problems
-- Return the problems that were reported in the last `within_s` seconds.
SELECT source, detail FROM alert_problems
WHERE reported_at > clock_timestamp() - %(within_s)s * interval '1 second'
ORDER BY source

-- name: list_recent_server_events
-- Return name and description of the events of servers (tables of the cold tier) of the last `within_s` seconds, one
-- row per server, shard and kind.
SELECT e.server || ' of shard ' || e.shard || ' ' || e.kind, max(e.description) || ' Accepted jobs missing: ' ||
  coalesce(sum(l.missing), 0) || '. See headrace tiers events.'
FROM server_events e LEFT JOIN server_event_losses l ON l.event_id = e.id
WHERE e.noticed_at > now() - make_interval(secs => %(within_s)s)
GROUP BY 1

-- Retention ----------------------------------------------------------------------------------------------------------

-- name: purge_incidents
-- Delete incidents that were resolved more than `keep_s` seconds ago, and keep the time at which each rule fired last.
WITH purged AS (
  DELETE FROM alert_incidents WHERE resolved_at < now() - %(keep_s)s * interval '1 second' RETURNING rule_id, fired_at
)
INSERT INTO alert_last_firings (rule_id, fired_at)
SELECT p.rule_id, max(p.fired_at) FROM purged AS p JOIN alert_rules AS r ON r.id = p.rule_id GROUP BY p.rule_id
ON CONFLICT (rule_id) DO UPDATE SET fired_at = greatest(alert_last_firings.fired_at, excluded.fired_at)

-- name: purge_last_firings
-- Delete the times at which removed rules fired last.
DELETE FROM alert_last_firings AS f WHERE NOT EXISTS (SELECT 1 FROM alert_rules AS r WHERE r.id = f.rule_id)

-- name: purge_transitions
-- Delete transitions older than `keep_s` seconds, except those of open incidents.
DELETE FROM alert_transitions AS t
WHERE t.at < now() - %(keep_s)s * interval '1 second'
  AND NOT EXISTS (SELECT 1 FROM alert_incidents AS i WHERE i.id = t.incident AND i.resolved_at IS NULL)

-- name: purge_messages
-- Delete messages older than `keep_s` seconds that were delivered or given up.
DELETE FROM alert_outbox
WHERE created_at < now() - %(keep_s)s * interval '1 second' AND (delivered_at IS NOT NULL OR given_up_at IS NOT NULL)

-- name: purge_silences
-- Delete silences that ended more than `keep_s` seconds ago.
DELETE FROM alert_silences WHERE ends_at < now() - %(keep_s)s * interval '1 second'

-- What became of the messages about one incident, in the order in which they were written.
SELECT m.id, m.channel_id, c.name AS channel, m.message ->> 'kind' AS kind, m.attempts, m.created_at, m.delivered_at,
  m.given_up_at, m.error
FROM alert_outbox AS m
JOIN alert_channels AS c ON c.id = m.channel_id
WHERE m.message -> 'transitions' @> jsonb_build_array(jsonb_build_object('incident', %(id)s::text))
ORDER BY m.seq

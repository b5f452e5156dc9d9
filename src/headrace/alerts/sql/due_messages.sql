-- The first message of each channel that may be tried now, except those in hand.
SELECT DISTINCT ON (m.channel_id)
  m.seq, m.id, m.message, m.attempts, c.id AS channel_id, c.org, c.project, c.env, c.type, c.config, c.failures,
  extract(epoch FROM clock_timestamp() - m.created_at)::float8 AS age_s
FROM alert_outbox AS m
JOIN alert_channels AS c ON c.id = m.channel_id
WHERE m.delivered_at IS NULL
  AND m.given_up_at IS NULL
  AND c.enabled
  AND (c.retry_at IS NULL OR c.retry_at <= clock_timestamp())
  AND NOT m.channel_id = ANY(%(in_hand)s)
ORDER BY m.channel_id, m.seq

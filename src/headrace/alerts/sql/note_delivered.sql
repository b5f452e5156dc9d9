WITH noted AS (
  UPDATE alert_outbox SET delivered_at = clock_timestamp(), attempts = attempts + 1, error = NULL WHERE seq = %(seq)s
)
UPDATE alert_channels SET failures = 0, retry_at = NULL, last_error = NULL, last_sent = clock_timestamp()
WHERE id = %(channel_id)s

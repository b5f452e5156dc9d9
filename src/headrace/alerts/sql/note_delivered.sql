-- With a note: some recipients were refused.
WITH noted AS (
  UPDATE alert_outbox SET delivered_at = clock_timestamp(), attempts = attempts + 1, error = %(note)s WHERE seq = %(seq)s
)
UPDATE alert_channels SET failures = 0, retry_at = NULL, last_error = %(note)s, last_sent = clock_timestamp()
WHERE id = %(channel_id)s

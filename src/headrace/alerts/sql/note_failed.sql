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

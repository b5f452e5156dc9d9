DELETE FROM alert_outbox
WHERE created_at < now() - %(keep_s)s * interval '1 second' AND (delivered_at IS NOT NULL OR given_up_at IS NOT NULL)

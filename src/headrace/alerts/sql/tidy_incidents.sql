DELETE FROM alert_incidents WHERE resolved_at < now() - %(keep_s)s * interval '1 second'

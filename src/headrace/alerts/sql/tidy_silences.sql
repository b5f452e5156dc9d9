DELETE FROM alert_silences WHERE ends_at < now() - %(keep_s)s * interval '1 second'

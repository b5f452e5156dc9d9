INSERT INTO alert_problems (source, detail) VALUES (%(source)s, %(detail)s)
ON CONFLICT (source) DO UPDATE SET detail = excluded.detail, reported_at = clock_timestamp()

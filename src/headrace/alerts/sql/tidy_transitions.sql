DELETE FROM alert_transitions AS t
WHERE t.at < now() - %(keep_s)s * interval '1 second'
  AND NOT EXISTS (SELECT 1 FROM alert_incidents AS i WHERE i.id = t.incident AND i.resolved_at IS NULL)

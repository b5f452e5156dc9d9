INSERT INTO alert_transitions (id, rule_id, queue, incident, kind, at, value, told)
VALUES (%(id)s, %(rule_id)s, %(queue)s, %(incident)s, %(kind)s, to_timestamp(%(at_ms)s / 1000.0), %(value)s, %(told)s)
ON CONFLICT (id) DO NOTHING

INSERT INTO alert_states (rule_id, queue, phase, since_ms, clean_ms, fired_ms, incident, told, value)
VALUES (%(rule_id)s, %(queue)s, %(phase)s, %(since_ms)s, %(clean_ms)s, %(fired_ms)s, %(incident)s, %(told)s, %(value)s)
ON CONFLICT (rule_id, queue) DO UPDATE
SET phase = excluded.phase, since_ms = excluded.since_ms, clean_ms = excluded.clean_ms, fired_ms = excluded.fired_ms,
  incident = excluded.incident, told = excluded.told, value = excluded.value

SELECT rule_id, queue, phase, since_ms, clean_ms, fired_ms, incident, told, value
FROM alert_states
WHERE rule_id = ANY(%(rules)s)
ORDER BY rule_id, queue
FOR UPDATE

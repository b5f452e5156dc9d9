-- States of rules that are gone or switched off.
SELECT s.rule_id, s.queue, s.phase, s.since_ms, s.clean_ms, s.fired_ms, s.incident, s.told, s.value
FROM alert_states AS s
LEFT JOIN alert_rules AS r ON r.id = s.rule_id
WHERE (r.id IS NULL OR NOT r.enabled) AND s.rule_id NOT LIKE 'health:%%'
ORDER BY s.rule_id, s.queue
LIMIT %(limit)s
FOR UPDATE OF s

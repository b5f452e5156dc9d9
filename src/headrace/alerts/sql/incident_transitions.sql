SELECT id, rule_id, queue, incident, kind, at, value, told FROM alert_transitions WHERE incident = %(id)s ORDER BY at, id

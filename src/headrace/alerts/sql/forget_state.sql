DELETE FROM alert_states WHERE rule_id = %(rule_id)s AND queue = %(queue)s

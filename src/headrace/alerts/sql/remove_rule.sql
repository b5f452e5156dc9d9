DELETE FROM alert_rules WHERE id = %(id)s RETURNING id

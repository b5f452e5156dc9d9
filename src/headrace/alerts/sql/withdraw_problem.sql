DELETE FROM alert_problems WHERE source = %(source)s

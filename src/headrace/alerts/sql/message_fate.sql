SELECT delivered_at IS NOT NULL AS delivered, error FROM alert_outbox WHERE id = %(id)s

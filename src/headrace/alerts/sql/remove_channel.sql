DELETE FROM alert_channels WHERE id = %(id)s RETURNING id

INSERT INTO alert_outbox (id, channel_id, message)
SELECT %(id)s, id, %(message)s FROM alert_channels WHERE id = %(channel_id)s

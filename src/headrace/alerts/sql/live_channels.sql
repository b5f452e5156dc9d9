SELECT id, health_by_operator FROM alert_channels WHERE enabled

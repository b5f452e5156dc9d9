SELECT id, health FROM alert_channels WHERE enabled

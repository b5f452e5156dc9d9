SELECT revision FROM alert_revision

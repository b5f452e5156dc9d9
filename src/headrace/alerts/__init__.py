"""Alerts: rules evaluated on history, incidents, and messages delivered to channels."""

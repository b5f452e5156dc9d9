"""Alerts: rules over history, incidents that begin and end, and messages that arrive."""

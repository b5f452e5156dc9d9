-- Finds the messages about an incident.
CREATE INDEX alert_outbox_incidents ON alert_outbox USING gin ((message -> 'transitions') jsonb_path_ops);

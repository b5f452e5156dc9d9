-- Changes when a standby is promoted or a backup is recovered to a point in time.
SELECT s.system_identifier::text || '/' || c.timeline_id::text FROM pg_control_system() s, pg_control_checkpoint() c

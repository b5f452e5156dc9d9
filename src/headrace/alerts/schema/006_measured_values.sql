-- Time of the last evaluation (ms) whose value is in `value`, while an incident is open. NULL: not known, because an
-- evaluator of an older version wrote the state.
ALTER TABLE alert_states ADD COLUMN measured_ms bigint;

-- When each rule fired last, for rules whose incidents were deleted after their retention. Newer firings are read from
-- alert_incidents.
CREATE TABLE alert_last_firings (
  rule_id  text PRIMARY KEY,
  fired_at timestamptz NOT NULL
);
CREATE INDEX alert_incidents_rule ON alert_incidents (rule_id, fired_at);

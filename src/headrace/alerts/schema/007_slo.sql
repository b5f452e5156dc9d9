-- Rules with the metric SLO: the longest wait of a job that starts in time, and the share of jobs that should do so.
-- NULL for all other metrics.
ALTER TABLE alert_rules ADD COLUMN within_ms bigint, ADD COLUMN objective double precision;

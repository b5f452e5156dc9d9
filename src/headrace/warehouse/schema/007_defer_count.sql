-- Count deferrals: running jobs that were given back without an attempt. Rows written before read as 0.
--
-- The views that exist are not altered: ClickHouse would not recognise records that were inserted before and are sent again,
-- and count them twice in the tables that the views fill. Views of their own pass the new counter on.
ALTER TABLE {database}.queue_metrics_5s_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;
ALTER TABLE {database}.queue_metrics_by_minute_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;
ALTER TABLE {database}.queue_metrics_by_hour_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;
ALTER TABLE {database}.environment_metrics_5s_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;
ALTER TABLE {database}.environment_metrics_by_minute_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;
ALTER TABLE {database}.environment_metrics_by_hour_v1 ADD COLUMN IF NOT EXISTS defer_count UInt64 AFTER cancel_count;

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.queue_metrics_by_hour_defers_mv_v1
TO {database}.queue_metrics_by_hour_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  s.queue_name AS queue_name,
  toStartOfHour(s.bucket_start) AS bucket_start,
  s.epoch AS epoch,
  sum(s.defer_count) AS defer_count
FROM {database}.queue_metrics_by_minute_v1 AS s
WHERE s.generation = 0 AND s.defer_count > 0
GROUP BY s.organization_id, s.project_id, s.environment_id, s.queue_name, toStartOfHour(s.bucket_start), s.epoch;

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.queue_metrics_by_minute_defers_mv_v1
TO {database}.queue_metrics_by_minute_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  s.queue_name AS queue_name,
  toStartOfMinute(s.bucket_start) AS bucket_start,
  s.epoch AS epoch,
  sum(s.defer_count) AS defer_count
FROM {database}.queue_metrics_5s_v1 AS s
WHERE s.generation = 0 AND s.defer_count > 0
GROUP BY s.organization_id, s.project_id, s.environment_id, s.queue_name, toStartOfMinute(s.bucket_start), s.epoch;

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.environment_metrics_by_hour_defers_mv_v1
TO {database}.environment_metrics_by_hour_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  toStartOfHour(s.bucket_start) AS bucket_start,
  sum(s.defer_count) AS defer_count
FROM {database}.environment_metrics_by_minute_v1 AS s
WHERE s.generation = 0 AND s.defer_count > 0
GROUP BY s.organization_id, s.project_id, s.environment_id, toStartOfHour(s.bucket_start);

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.environment_metrics_by_minute_defers_mv_v1
TO {database}.environment_metrics_by_minute_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  toStartOfMinute(s.bucket_start) AS bucket_start,
  sum(s.defer_count) AS defer_count
FROM {database}.environment_metrics_5s_v1 AS s
WHERE s.generation = 0 AND s.defer_count > 0
GROUP BY s.organization_id, s.project_id, s.environment_id, toStartOfMinute(s.bucket_start);

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.environment_metrics_5s_defers_mv_v1
TO {database}.environment_metrics_5s_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  s.bucket_start AS bucket_start,
  sum(s.defer_count) AS defer_count
FROM {database}.queue_metrics_5s_v1 AS s
WHERE s.generation = 0 AND s.defer_count > 0
GROUP BY s.organization_id, s.project_id, s.environment_id, s.bucket_start;

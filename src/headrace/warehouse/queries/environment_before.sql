-- What was known of one environment at start_s; buckets are chosen as in queue_before.sql. Always one row; `queues` is 0
-- if the environment was never seen, `at` if nothing was known of it yet.
-- losses: what the pipeline reported as lost, in batches that hold events of [start_s, end_s) or are the first after.
WITH
  maxIf(last, last.at < {start_at:UInt64}) AS newest,
  (
    SELECT minOrNull(finished_at)
    FROM pipeline_batches_v1
    WHERE finished_at >= toDateTime64({start_s:UInt32}, 3, 'UTC') AND watermark_ms >= toUInt64({end_s:UInt32}) * 1000
  ) AS finished
SELECT
  newest.at AS at,
  newest.depth AS depth,
  newest.running AS running,
  newest.`limit` AS limit,
  countIf(from_queues) AS queues,
  (
    SELECT sum(lost_events + rewinds + set_aside)
    FROM pipeline_batches_v1
    WHERE finished_at >= toDateTime64({start_s:UInt32}, 3, 'UTC') AND (finished IS NULL OR finished_at <= finished)
  ) AS losses,
  (SELECT toUnixTimestamp64Milli(min(finished_at)) FROM pipeline_batches_v1) AS batches_since_ms,
{watermark}FROM
(
  SELECT 0 AS from_queues, last
  FROM environment_metrics_5s_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start >= toDateTime({hour_s:UInt32}, 'UTC') AND bucket_start < toDateTime({start_s:UInt32}, 'UTC')
    AND
{current}  UNION ALL
  SELECT 0, last
  FROM environment_metrics_by_minute_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start >= toDateTime({day_s:UInt32}, 'UTC') AND bucket_start < toDateTime({minute_s:UInt32}, 'UTC')
    AND
{current}  UNION ALL
  SELECT 0, last
  FROM environment_metrics_by_hour_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start < toDateTime({hour_s:UInt32}, 'UTC')
    AND
{current}  UNION ALL
  SELECT 1, (last.at, last.env_depth, last.env_running, last.env_limit)
  FROM queue_last_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
)

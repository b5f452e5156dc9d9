-- What was known of one environment at start_s; buckets are chosen as in queue_before.sql. Always one row; `known` is 0
-- if the environment was never seen, `at` if nothing was known of it yet.
WITH maxIf(last, last.at < {start_at:UInt64}) AS newest
SELECT
  newest.at AS at,
  newest.depth AS depth,
  newest.running AS running,
  newest.`limit` AS limit,
  count() > 0 AS known
FROM
(
  SELECT bucket_start, generation, last
  FROM environment_metrics_5s_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start >= toDateTime({hour_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({start_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, last
  FROM environment_metrics_by_minute_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start >= toDateTime({day_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({minute_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, last
  FROM environment_metrics_by_hour_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start < toDateTime({hour_s:UInt32}, 'UTC')
  UNION ALL
  SELECT
    toDateTime(0, 'UTC'),
    0,
    CAST((last.at, last.env_depth, last.env_running, last.env_limit),
      'Tuple(at UInt64, depth UInt32, running UInt32, `limit` Int64)')
  FROM queue_last_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
)
WHERE
{current}
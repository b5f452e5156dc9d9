-- The newest gauges of every queue of some environments from before start_s. What a queue did last is in queue_last_v1,
-- and that is all there is to read of those that did nothing since; of the others the tiers know what came before, see
-- queue_before.sql for how they are cut. `at` is 0 if nothing was known of a queue yet.
WITH
  environments AS
  (
    SELECT name.1 AS o, name.2 AS p, name.3 AS e
    FROM (SELECT arrayJoin(arrayZip({orgs:Array(String)}, {projects:Array(String)}, {envs:Array(String)})) AS name)
  ),
  active AS
  (
    SELECT organization_id, project_id, environment_id, queue_name
    FROM queue_last_v1
    WHERE (organization_id, project_id, environment_id) IN (SELECT o, p, e FROM environments)
    GROUP BY organization_id, project_id, environment_id, queue_name
    HAVING max(last.at) >= {start_at:UInt64}
  )
SELECT
  organization_id AS org,
  project_id AS project,
  environment_id AS env,
  queue_name AS queue,
  maxIf(last, last.at < {start_at:UInt64}) AS newest,
  newest.at AS at,
  newest.depth AS depth,
  newest.oldest_at AS oldest_ms
FROM
(
  SELECT organization_id, project_id, environment_id, queue_name, bucket_start, generation, last
  FROM queue_metrics_5s_v1
  WHERE (organization_id, project_id, environment_id, queue_name) IN (SELECT * FROM active)
    AND bucket_start >= toDateTime({hour_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({start_s:UInt32}, 'UTC')
  UNION ALL
  SELECT organization_id, project_id, environment_id, queue_name, bucket_start, generation, last
  FROM queue_metrics_by_minute_v1
  WHERE (organization_id, project_id, environment_id, queue_name) IN (SELECT * FROM active)
    AND bucket_start >= toDateTime({day_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({minute_s:UInt32}, 'UTC')
  UNION ALL
  SELECT organization_id, project_id, environment_id, queue_name, bucket_start, generation, last
  FROM queue_metrics_by_hour_v1
  WHERE (organization_id, project_id, environment_id, queue_name) IN (SELECT * FROM active)
    AND bucket_start < toDateTime({hour_s:UInt32}, 'UTC')
  UNION ALL
  SELECT organization_id, project_id, environment_id, queue_name, toDateTime(0, 'UTC'), 0, last
  FROM queue_last_v1
  WHERE (organization_id, project_id, environment_id) IN (SELECT o, p, e FROM environments)
)
WHERE
{current}GROUP BY org, project, env, queue

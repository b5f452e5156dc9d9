-- How long jobs of each queue waited and ran in [start_s, end_s).
SELECT
  organization_id AS org,
  project_id AS project,
  environment_id AS env,
  queue_name AS queue,
  sumMap(wait_histogram) AS waits,
  sumMap(run_histogram) AS runs
FROM queue_metrics_5s_v1
WHERE bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current}GROUP BY org, project, env, queue

-- One environment over [start_s, end_s): a row per point that has rows, and, of the same rows, one with all of it.
WITH
  intDiv(toUnixTimestamp(bucket_start) - {start_s:UInt32}, {step_s:UInt32}) AS place,
{durations}  max(last) AS newest
SELECT
  toUInt8(grouping(place)) AS of_epoch,
  place AS point,
  0 AS epoch,
{counters}{percentiles}  max(max_queue_length) AS max_depth,
  max(max_concurrency_current) AS max_running,
  newest.depth AS depth,
  newest.running AS running,
  newest.`limit` AS limit,
  if(of_epoch, toJSONString((wait, run, map(), map())), '') AS maps
FROM {table}
WHERE organization_id = {org:String}
  AND project_id = {project:String}
  AND environment_id = {env:String}
  AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current}GROUP BY GROUPING SETS ((place), ())
ORDER BY of_epoch, point

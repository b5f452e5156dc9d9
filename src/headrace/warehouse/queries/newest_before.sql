-- The newest bucket of one queue that starts before start_s: gauges are carried from it.
SELECT
{bucket}FROM {table}
WHERE organization_id = {org:String}
  AND project_id = {project:String}
  AND environment_id = {env:String}
  AND queue_name = {queue:String}
  AND bucket_start < toDateTime({start_s:UInt32}, 'UTC')
  AND
{current}GROUP BY bucket_start
ORDER BY bucket_start DESC
LIMIT 1

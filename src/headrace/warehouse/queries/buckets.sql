-- Buckets of one queue that start in [start_s, end_s).
SELECT
{bucket}FROM {table}
WHERE organization_id = {org:String}
  AND project_id = {project:String}
  AND environment_id = {env:String}
  AND queue_name = {queue:String}
  AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current}GROUP BY bucket_start
ORDER BY bucket_start

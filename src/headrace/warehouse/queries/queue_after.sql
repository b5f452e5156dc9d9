-- Per epoch, where the odometers of one queue stood before their first events in buckets from end_s on. Buckets are
-- chosen as in queue_before.sql, on the other side: the 5 s up to the next hour, the minutes up to the next day, and all
-- hours.
SELECT epoch, minMap(first_odometers) AS readings
FROM
(
  SELECT bucket_start, generation, epoch, first_odometers
  FROM queue_metrics_5s_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start >= toDateTime({end_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({hour_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, epoch, first_odometers
  FROM queue_metrics_by_minute_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start >= toDateTime({minute_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({day_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, epoch, first_odometers
  FROM queue_metrics_by_hour_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start >= toDateTime({hour_s:UInt32}, 'UTC')
)
WHERE
{current}GROUP BY epoch

-- What was known of one queue at start_s: its newest gauges, and per epoch how far its odometers had come. Of each tier
-- the buckets that had ended by then: the 5 s of the hour, the minutes of the day, and all hours; they overlap, so that
-- a tier that is behind hides nothing. A queue that was ever seen gives a row, if only that of epoch 0; `at` is 0 if
-- nothing was known of it yet.
WITH maxIf(last, last.at < {start_at:UInt64}) AS newest
SELECT
  epoch,
  newest.at AS at,
  newest.depth AS depth,
  newest.cold_depth AS cold,
  newest.scheduled AS scheduled,
  newest.running AS running,
  newest.`limit` AS limit,
  newest.oldest_at AS oldest_ms,
  newest.bytes AS bytes,
  maxMap(last_odometers) AS readings
FROM
(
  SELECT bucket_start, generation, epoch, last, last_odometers
  FROM queue_metrics_5s_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start >= toDateTime({hour_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({start_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, epoch, last, last_odometers
  FROM queue_metrics_by_minute_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start >= toDateTime({day_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({minute_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, epoch, last, last_odometers
  FROM queue_metrics_by_hour_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start < toDateTime({hour_s:UInt32}, 'UTC')
  UNION ALL
  SELECT toDateTime(0, 'UTC'), 0, 0, last, CAST(map(), 'Map(Int16, UInt64)')
  FROM queue_last_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
)
WHERE
{current}GROUP BY epoch
ORDER BY epoch

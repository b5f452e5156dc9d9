-- One queue over [start_s, end_s): a row per point that has rows, and, of the same rows, one per epoch with all of it.
-- Points of several buckets have the columns of gap_ages.sql too.
WITH
  intDiv(toUnixTimestamp(bucket_start) - {start_s:UInt32}, {step_s:UInt32}) AS place,
{durations}  max(last) AS newest
SELECT
  toUInt8(grouping(place)) AS of_epoch,
  place AS point,
  epoch,
{counters}{percentiles}  max(max_queue_length) AS max_depth,
  max(max_cold_queue_length) AS max_cold,
  max(max_concurrency_current) AS max_running,
  max(max_bytes) AS highest_bytes,
  max(max_oldest_message_age_ms) AS seen_age_ms,
{gap_ages}  newest.depth AS depth,
  newest.cold_depth AS cold,
  newest.scheduled AS scheduled,
  newest.running AS running,
  newest.`limit` AS limit,
  newest.oldest_at AS oldest_ms,
  newest.bytes AS bytes,
  if(of_epoch, toJSONString((wait, run, minMap(first_odometers), maxMap(last_odometers))), '') AS maps
FROM {table}
WHERE organization_id = {org:String}
  AND project_id = {project:String}
  AND environment_id = {env:String}
  AND queue_name = {queue:String}
  AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current}GROUP BY GROUPING SETS ((place), (epoch))
ORDER BY of_epoch, point, epoch

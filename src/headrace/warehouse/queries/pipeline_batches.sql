-- The newest batches, newest first.
SELECT
  toUnixTimestamp64Milli(finished_at) AS finished_ms,
  batch_id,
  events,
  rows,
  duration_ms,
  if(events = 0, NULL, greatest(toUnixTimestamp64Milli(readable_at) - oldest_event_ms, 0)) AS fresh_after_ms,
  lost_events,
  set_aside,
  rewinds
FROM {table}
WHERE finished_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
ORDER BY finished_at DESC
LIMIT {limit:UInt32}

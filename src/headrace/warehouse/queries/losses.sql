-- How far history is whole; what the pipeline reported as lost in batches that hold events of [start_ms, end_ms), or are
-- the first after: what nobody read in time is missed by the batch that comes next; and since when there are reports.
WITH
  (
    SELECT minOrNull(finished_at)
    FROM pipeline_batches_v1
    WHERE finished_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC') AND watermark_ms >= {end_ms:Int64}
  ) AS next
SELECT
  (
    SELECT max(watermark_ms)
    FROM (SELECT watermark_ms FROM pipeline_batches_v1 ORDER BY finished_at DESC LIMIT 100)
  ) AS watermark_ms,
  (SELECT toUnixTimestamp64Milli(minOrNull(finished_at)) FROM pipeline_batches_v1) AS since_ms,
  sum(lost_events + rewinds + set_aside) AS losses
FROM pipeline_batches_v1
WHERE finished_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC') AND (next IS NULL OR finished_at <= next)

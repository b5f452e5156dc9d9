-- How far history is whole; what the pipeline reported as lost in batches that hold events of a window up to end_ms, or
-- are the first after: what nobody read in time is missed by the batch that comes next; of that, what was reported
-- around the end, which may belong before it or after it; and since when there are reports. Batches are looked for from
-- since_ms on, a little before the window: their times are by the pipeline's clock, those of events by Valkey's. Rows are
-- in the order of finished_at, so few are looked at.
WITH
  (
    SELECT finished_at
    FROM pipeline_batches_v1
    WHERE finished_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AND watermark_ms >= {end_ms:Int64}
    ORDER BY finished_at
    LIMIT 1
  ) AS next
SELECT
  (
    SELECT max(watermark_ms)
    FROM (SELECT watermark_ms FROM pipeline_batches_v1 ORDER BY finished_at DESC LIMIT 100)
  ) AS watermark_ms,
  (
    SELECT toUnixTimestamp64Milli(finished_at) FROM pipeline_batches_v1 ORDER BY finished_at LIMIT 1
  ) AS reported_since_ms,
  sum(lost_events + rewinds + set_aside) AS losses,
  sumIf(lost_events + rewinds + set_aside, next IS NOT NULL AND newest_event_ms >= {near_end_ms:Int64}) AS at_end
FROM pipeline_batches_v1
WHERE finished_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AND (next IS NULL OR finished_at <= next)

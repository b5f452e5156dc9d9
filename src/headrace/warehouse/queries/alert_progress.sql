-- How far history is, and what the pipeline missed since since_ms.
SELECT
  max(watermark_ms) AS watermark_ms,
  toUnixTimestamp64Milli(min(finished_at)) AS since_ms,
  sumIf(lost_events + rewinds + set_aside, finished_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')) AS losses
FROM pipeline_batches_v1

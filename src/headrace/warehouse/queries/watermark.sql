  -- Rows are in the order of finished_at: the last hour of them is looked at, whenever it was.
  (
    SELECT max(watermark_ms)
    FROM pipeline_batches_v1
    WHERE finished_at >= (SELECT max(finished_at) FROM pipeline_batches_v1) - INTERVAL 1 HOUR
  ) AS watermark_ms

-- How far history is whole, by the newest batches. Rows are in the order of finished_at, so few are looked at.
SELECT max(watermark_ms) AS watermark_ms
FROM (SELECT watermark_ms FROM pipeline_batches_v1 ORDER BY finished_at DESC LIMIT 100)

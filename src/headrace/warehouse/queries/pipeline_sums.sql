-- All batches since a time together. Freshness is weighted by events, each with the age of the oldest of its batch.
SELECT
  count() AS batches,
  sum(events) AS event_count,
  sum(rows) AS row_count,
  sum(lost_events) AS lost,
  sum(set_aside) AS aside,
  sum(rewinds) AS rewound,
  quantileExact(0.5)(duration_ms) AS duration_p50,
  quantileExact(0.99)(duration_ms) AS duration_p99,
  quantileExactWeighted(0.5)(greatest(toUnixTimestamp64Milli(readable_at) - oldest_event_ms, 0), events) AS freshness_p50,
  quantileExactWeighted(0.99)(greatest(toUnixTimestamp64Milli(readable_at) - oldest_event_ms, 0), events) AS freshness_p99,
  (SELECT max(watermark_ms) FROM {table}) AS watermark
FROM {table}
WHERE finished_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')

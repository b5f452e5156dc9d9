-- Hours of shards with a gap inside or before them that concerns entries after start_at up to end_at. `before_at` is where
-- the hour before ended; the first hour of a shard has first = 1.
SELECT shard, toInt64(toUnixTimestamp(hour)) AS hour_s, before_at, first, from_at, to_at
FROM
(
  SELECT
    shard,
    hour,
    min(h.from_at) AS from_at,
    max(h.to_at) AS to_at,
    sum(h.length) AS length,
    lagInFrame(max(h.to_at)) OVER (PARTITION BY shard ORDER BY hour ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS before_at,
    row_number() OVER (PARTITION BY shard ORDER BY hour) = 1 AS first
  FROM pipeline_coverage_by_hour_v1 AS h
  GROUP BY shard, hour
)
WHERE (first AND from_at > 0 AND from_at > {start_at:UInt64})
  OR (NOT first AND from_at > before_at AND from_at > {start_at:UInt64} AND before_at < {end_at:UInt64})
  OR (to_at - from_at > length AND to_at > {start_at:UInt64} AND from_at < {end_at:UInt64})
ORDER BY hour_s, shard

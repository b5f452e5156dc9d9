-- Which entries of the metric streams history holds. A row comes with the rows of history that it vouches for, in the same
-- record of the spool and after them: if they are lost on the way, or a backup without them is restored, it is missing
-- too, and its interval is a gap.
CREATE TABLE IF NOT EXISTS {database}.pipeline_coverage_v1
(
  finished_at     DateTime64(3, 'UTC'),
  shard           UInt32,
  -- The interval (from_at, to_at] of entry ids, packed as ms * 2^20 + sequence. Intervals of a shard follow each other.
  from_at         UInt64,
  to_at           UInt64,
  -- The whole batch. Its interval is divided among its records, and each of them may hold rows of any time of the batch.
  batch_from_at   UInt64,
  batch_to_at     UInt64,
  -- Numbers of the last event before the batch and of its last event; 0: not known.
  batch_from_event UInt64,
  batch_to_event   UInt64
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(finished_at)
ORDER BY (shard, to_at)
TTL toDateTime(finished_at) + INTERVAL 31 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Intervals of stream entries that history holds, kept 31 days.';

-- The same by hours of to_at. There is a gap within an hour if max(to_at) - min(from_at) is more than sum(length).
CREATE TABLE IF NOT EXISTS {database}.pipeline_coverage_by_hour_v1
(
  hour        DateTime('UTC'),
  shard       UInt32,
  from_at     SimpleAggregateFunction(min, UInt64),
  to_at       SimpleAggregateFunction(max, UInt64),
  length      SimpleAggregateFunction(sum, UInt64),
  finished_at SimpleAggregateFunction(max, DateTime('UTC'))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(hour)
ORDER BY (shard, hour)
TTL finished_at + INTERVAL 31 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Filled by a view from pipeline_coverage_v1, kept 31 days.';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.pipeline_coverage_by_hour_mv_v1
TO {database}.pipeline_coverage_by_hour_v1 AS
SELECT
  toStartOfHour(toDateTime(bitShiftRight(c.to_at, 20) DIV 1000, 'UTC')) AS hour,
  c.shard AS shard,
  min(c.from_at) AS from_at,
  max(c.to_at) AS to_at,
  sum(c.to_at - c.from_at) AS length,
  max(toDateTime(c.finished_at, 'UTC')) AS finished_at
FROM {database}.pipeline_coverage_v1 AS c
GROUP BY shard, hour;

-- What the pipeline did: one row per micro-batch. Answers how fresh and how far history is.
CREATE TABLE IF NOT EXISTS {database}.pipeline_batches_v1
(
  finished_at       DateTime64(3, 'UTC'),
  batch_id          UInt64,
  events            UInt64,
  rows              UInt64,
  duration_ms       UInt64,
  -- Age of the oldest event of the batch when the batch became readable: an upper bound for every
  -- event in it. Weigh by `events` for percentiles.
  freshness_max_ms  UInt64,
  -- Time of the newest event of the batch, in ms.
  newest_event_ms   UInt64
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(finished_at)
ORDER BY finished_at
TTL toDateTime(finished_at) + INTERVAL 31 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One row per micro-batch of the pipeline, kept 31 days.';

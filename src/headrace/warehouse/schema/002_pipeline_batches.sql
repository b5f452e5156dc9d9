-- What the pipeline did: one row per micro-batch. Answers how fresh and how far history is.
CREATE TABLE IF NOT EXISTS {database}.pipeline_batches_v1
(
  finished_at       DateTime64(3, 'UTC'),
  batch_id          UInt64,
  events            UInt64,
  rows              UInt64,
  duration_ms       UInt64,
  -- Times of its oldest and newest event, in ms.
  oldest_event_ms   UInt64,
  newest_event_ms   UInt64,
  -- Events of the shards that were trimmed, or never written, before the pipeline could read them.
  lost_events       UInt64,
  -- Times a shard's event number went back: Valkey lost data.
  rewinds           UInt64,
  -- Entries that could not be understood; see pipeline_set_aside_v1.
  set_aside         UInt64,
  -- The time up to which every shard was read, in ms; 0: not known. The highest of all is how far history is whole.
  watermark_ms      UInt64,
  -- When it came here, after its rows. readable_at - oldest_event_ms is an upper bound of how long any of its events
  -- took. Weigh by `events` for percentiles.
  readable_at       DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(finished_at)
ORDER BY finished_at
TTL toDateTime(finished_at) + INTERVAL 31 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One row per micro-batch of the pipeline, kept 31 days.';

-- Entries of the metric streams that the pipeline could not understand: kept to be looked at, never guessed at.
CREATE TABLE IF NOT EXISTS {database}.pipeline_set_aside_v1
(
  seen_at   DateTime64(3, 'UTC') DEFAULT now64(3),
  shard     UInt16,
  -- The id of the stream entry, as Valkey writes it.
  entry_id  String,
  -- Why it was set aside, in words.
  reason    String,
  -- The beginning of the entry, as it was found; any bytes.
  sample    String
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(seen_at)
ORDER BY (seen_at, shard)
TTL toDateTime(seen_at) + INTERVAL 31 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Entries that the pipeline could not understand, kept 31 days.';

-- Which generation of the tiers counts, hour by hour.

CREATE TABLE IF NOT EXISTS {database}.history_windows_v1
(
  -- Whole hours: [start, end).
  start       DateTime('UTC'),
  end         DateTime('UTC'),
  -- Above 0. Of the windows that hold an hour, the one with the highest generation counts; an hour in none has
  -- generation 0.
  generation  UInt32,
  made_at     DateTime('UTC') DEFAULT now()
)
ENGINE = ReplacingMergeTree
ORDER BY (start, end, generation)
-- Longer than any tier lives: the end of a window must not bring back what it replaced.
TTL end + INTERVAL 500 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One row per backfill: its hours are read in its generation.';

-- The generations that backfills took, finished or not. A row is inserted under a token made of its number, so of two
-- that take the same number at once ClickHouse keeps one, and the other sees it.
CREATE TABLE IF NOT EXISTS {database}.history_generations_v1
(
  generation  UInt32,
  taken_by    String,
  taken_at    DateTime('UTC') DEFAULT now()
)
ENGINE = MergeTree
ORDER BY generation
TTL taken_at + INTERVAL 500 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One row per generation that a backfill took. Never used twice.';

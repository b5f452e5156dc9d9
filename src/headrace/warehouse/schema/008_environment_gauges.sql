-- Gauges of environments that events do not carry: jobs in PostgreSQL, scheduled jobs, bytes, and the oldest job, of all queues
-- together. Before this migration they were not kept; times without rows are unknown.
--
-- A queue without events keeps its gauges, so they are added up over the newest state of every queue (queue_last_v1), not
-- only over the queues of an insert. An insert is one state, at the time of its newest event. There are no generations: a
-- backfill does not write these tables.
CREATE TABLE IF NOT EXISTS {database}.environment_gauges_5s_v1
(
  organization_id            String,
  project_id                 String,
  environment_id             String,
  bucket_start               DateTime('UTC'),
  -- Read with max(last).cold_depth and so on; `at` and oldest_at as in queue_metrics_5s_v1.
  last                       SimpleAggregateFunction(max, Tuple(
                               at UInt64, cold_depth UInt64, scheduled UInt64, bytes UInt64, oldest_at UInt64)),
  -- The highest value in the bucket. Read with max().
  max_bytes                  SimpleAggregateFunction(max, UInt64),
  max_oldest_message_age_ms  SimpleAggregateFunction(max, UInt64)
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, bucket_start)
TTL bucket_start + INTERVAL 2 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Per environment, gauges of all its queues, 5 s buckets, kept 2 days. Filled from the queues.';

CREATE TABLE IF NOT EXISTS {database}.environment_gauges_by_minute_v1 AS {database}.environment_gauges_5s_v1
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, bucket_start)
TTL bucket_start + INTERVAL 31 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'The same, minutes, kept 31 days.';

CREATE TABLE IF NOT EXISTS {database}.environment_gauges_by_hour_v1 AS {database}.environment_gauges_5s_v1
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(bucket_start)
ORDER BY (organization_id, project_id, environment_id, bucket_start)
TTL bucket_start + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'The same, hours, kept 400 days.';

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.environment_gauges_by_hour_mv_v1
TO {database}.environment_gauges_by_hour_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  toStartOfHour(s.bucket_start) AS bucket_start,
  max(s.last) AS last,
  max(s.max_bytes) AS max_bytes,
  max(s.max_oldest_message_age_ms) AS max_oldest_message_age_ms
FROM {database}.environment_gauges_by_minute_v1 AS s
GROUP BY s.organization_id, s.project_id, s.environment_id, toStartOfHour(s.bucket_start);

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.environment_gauges_by_minute_mv_v1
TO {database}.environment_gauges_by_minute_v1 AS
SELECT
  s.organization_id AS organization_id,
  s.project_id AS project_id,
  s.environment_id AS environment_id,
  toStartOfMinute(s.bucket_start) AS bucket_start,
  max(s.last) AS last,
  max(s.max_bytes) AS max_bytes,
  max(s.max_oldest_message_age_ms) AS max_oldest_message_age_ms
FROM {database}.environment_gauges_5s_v1 AS s
GROUP BY s.organization_id, s.project_id, s.environment_id, toStartOfMinute(s.bucket_start);

-- The rows of an insert, and the state of every queue of their environments: of those that the insert contains, the newer
-- one counts, whether or not the view that fills queue_last_v1 has run. The state has the time of the newest event of the
-- insert, and is a row of the bucket of that event. An age is measured then; the highest age of a queue in the insert
-- counts too.
CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.environment_gauges_5s_mv_v1
TO {database}.environment_gauges_5s_v1 AS
SELECT
  q.organization_id AS organization_id,
  q.project_id AS project_id,
  q.environment_id AS environment_id,
  max(q.bucket) AS bucket_start,
  (
    max(q.newest.at),
    sum(toUInt64(q.newest.cold_depth)),
    sum(toUInt64(q.newest.scheduled)),
    sum(toUInt64(q.newest.bytes)),
    minIf(q.newest.oldest_at, q.newest.oldest_at > 0)
  ) AS last,
  greatest(sum(toUInt64(q.newest.bytes)), max(q.highest_bytes)) AS max_bytes,
  greatest(
    if(last.5 > 0, toUInt64(greatest(toInt64(bitShiftRight(last.1, 20)) - toInt64(last.5), 0)), 0),
    max(q.highest_age)) AS max_oldest_message_age_ms
FROM
(
  SELECT
    u.organization_id AS organization_id,
    u.project_id AS project_id,
    u.environment_id AS environment_id,
    u.queue_name AS queue_name,
    max(u.last) AS newest,
    max(u.bucket_start) AS bucket,
    max(u.highest_bytes) AS highest_bytes,
    max(u.highest_age) AS highest_age
  FROM
  (
    SELECT
      s.organization_id AS organization_id,
      s.project_id AS project_id,
      s.environment_id AS environment_id,
      s.queue_name AS queue_name,
      s.last AS last,
      s.bucket_start AS bucket_start,
      s.max_bytes AS highest_bytes,
      s.max_oldest_message_age_ms AS highest_age
    FROM {database}.queue_metrics_5s_v1 AS s
    WHERE s.generation = 0
    UNION ALL
    SELECT
      l.organization_id,
      l.project_id,
      l.environment_id,
      l.queue_name,
      l.last,
      toDateTime(0, 'UTC'),
      toUInt64(0),
      toUInt64(0)
    FROM {database}.queue_last_v1 AS l
    WHERE (l.organization_id, l.project_id, l.environment_id) IN (
      SELECT s.organization_id, s.project_id, s.environment_id
      FROM {database}.queue_metrics_5s_v1 AS s
      WHERE s.generation = 0
    )
  ) AS u
  GROUP BY u.organization_id, u.project_id, u.environment_id, u.queue_name
) AS q
GROUP BY q.organization_id, q.project_id, q.environment_id
HAVING bucket_start > toDateTime(0, 'UTC');

-- Fragments. `{name}` in a query includes the fragment of that name.

-- name: current_generation
-- A condition on rows of a tier: keep those of the generation that is active in their hour. One set decides for all
-- rows, so that a query sees a window before it was flipped or after: for each hour of a window the set holds the
-- highest generation, whose rows are kept, and 0, whose rows are dropped.
  ((toUnixTimestamp(toStartOfHour(bucket_start)), generation) IN (
    SELECT hour, arrayJoin([max(generation), 0])
    FROM
    (
      SELECT arrayJoin(range(toUnixTimestamp(start), toUnixTimestamp(`end`), 3600)) AS hour, generation
      FROM history_windows_v1
    )
    GROUP BY hour
  )) = (generation > 0)

-- name: streamed_generation
-- The same condition where no backfill wrote any of the hours that a query reads. Rows of generation 0 are never
-- deleted, so a backfill that ends meanwhile does not remove what such a query reads.
  generation = 0

-- name: histogram_columns
-- Histograms of wait and run durations, as stored.
  wait_histogram,
  run_histogram,

-- name: operation_sums
-- Sums of the counters of operations.
  sum(enqueue_count) AS enqueue_count,
  sum(spill_count) AS spill_count,
  sum(refill_count) AS refill_count,
  sum(dequeue_count) AS dequeue_count,
  sum(ack_count) AS ack_count,
  sum(nack_count) AS nack_count,
  sum(dlq_count) AS dlq_count,
  sum(ttl_expire_count) AS ttl_expire_count,
  sum(reclaim_count) AS reclaim_count,
  sum(release_count) AS release_count,
  sum(redrive_count) AS redrive_count,
  sum(cancel_count) AS cancel_count,
  sum(defer_count) AS defer_count,

-- name: duration_sums
-- Sums of wait and run durations (ms), and how many were measured.
  sum(total_wait_duration_ms) AS wait_ms,
  sum(wait_duration_count) AS waits,
  sum(total_run_duration_ms) AS run_ms,
  sum(run_duration_count) AS runs,

-- name: duration_histograms
-- Merged histograms of wait and run durations, their bucket keys, and the cumulative counts up to each key.
  sumMap(wait_histogram) AS wait,
  sumMap(run_histogram) AS run,
  mapKeys(wait) AS wait_keys,
  mapKeys(run) AS run_keys,
  arrayCumSum(mapValues(wait)) AS wait_ranks,
  arrayCumSum(mapValues(run)) AS run_ranks,

-- name: duration_percentiles
-- Keys of the histogram buckets that hold the percentiles of wait and run durations, see model/histogram.py; without
-- meaning where nothing was measured. Needs duration_sums and duration_histograms.
  arrayFirst((key, rank) -> rank >= ceil(waits * 0.5), wait_keys, wait_ranks) AS wait_p50,
  arrayFirst((key, rank) -> rank >= ceil(waits * 0.9), wait_keys, wait_ranks) AS wait_p90,
  arrayFirst((key, rank) -> rank >= ceil(waits * 0.95), wait_keys, wait_ranks) AS wait_p95,
  arrayFirst((key, rank) -> rank >= ceil(waits * 0.99), wait_keys, wait_ranks) AS wait_p99,
  arrayFirst((key, rank) -> rank >= ceil(runs * 0.5), run_keys, run_ranks) AS run_p50,
  arrayFirst((key, rank) -> rank >= ceil(runs * 0.9), run_keys, run_ranks) AS run_p90,
  arrayFirst((key, rank) -> rank >= ceil(runs * 0.95), run_keys, run_ranks) AS run_p95,
  arrayFirst((key, rank) -> rank >= ceil(runs * 0.99), run_keys, run_ranks) AS run_p99,

-- name: gap_ages
-- First and last bucket of a point (s), and the highest age (ms) that the oldest job reached between two of its buckets
-- with nothing in between. `steps` and the same moved by one are pairs of neighbours. `tier_s`: seconds of a bucket.
  toUnixTimestamp(min(bucket_start)) AS first_s,
  toUnixTimestamp(max(bucket_start)) AS last_s,
  arrayMax(
    (before, after) -> if(before.3 > 0 AND after.2 > before.2 + {tier_s:UInt32}, greatest(after.2 * 1000 - before.3, 0), 0),
    arraySort(groupArray((last.at, toInt64(toUnixTimestamp(bucket_start)), toInt64(last.oldest_at)))) AS steps,
    arrayPushBack(arrayPopFront(steps), steps[-1])) AS gap_age_ms,

-- name: bucket_columns
-- Columns of the rows of a tier, as they are stored, without those of wait and run histograms.
  toUnixTimestamp(bucket_start) AS bucket_s,
  enqueue_count,
  spill_count,
  refill_count,
  dequeue_count,
  ack_count,
  nack_count,
  dlq_count,
  ttl_expire_count,
  reclaim_count,
  release_count,
  redrive_count,
  cancel_count,
  defer_count,
  total_wait_duration_ms AS wait_ms,
  wait_duration_count AS waits,
  total_run_duration_ms AS run_ms,
  run_duration_count AS runs,
  max_queue_length AS max_depth,
  max_concurrency_current AS max_running,
  last.at AS at,
  last.depth AS depth,
  last.running AS running,
  last.`limit` AS limit,

-- One queue ----------------------------------------------------------------------------------------------------------

-- name: queue_points
-- One queue over [start_s, end_s), in points of `step_s` seconds: one row per point with data, then one row per epoch
-- for the whole window (of_epoch = 1) with its histograms and odometers as JSON. `{gap_ages}` is empty if a point is
-- one bucket of `tier_s` seconds. `{generation}` selects the rows that count.
WITH
  intDiv(toUnixTimestamp(bucket_start) - {start_s:UInt32}, {step_s:UInt32}) AS place,
{histograms}  max(last) AS newest
SELECT
  toUInt8(grouping(place)) AS of_epoch,
  place AS point,
  epoch,
{operation_sums}{duration_sums}{percentiles}  max(max_queue_length) AS max_depth,
  max(max_cold_queue_length) AS max_cold,
  max(max_concurrency_current) AS max_running,
  max(max_bytes) AS highest_bytes,
  max(max_oldest_message_age_ms) AS seen_age_ms,
{gap_ages}  newest.depth AS depth,
  newest.cold_depth AS cold,
  newest.scheduled AS scheduled,
  newest.running AS running,
  newest.`limit` AS limit,
  newest.oldest_at AS oldest_ms,
  newest.bytes AS bytes,
  newest.env_limit AS env_limit,
  if(of_epoch, toJSONString(({histogram_sums}, minMap(first_odometers), maxMap(last_odometers))), '') AS maps
FROM {table}
WHERE organization_id = {org:String}
  AND project_id = {project:String}
  AND environment_id = {env:String}
  AND queue_name = {queue:String}
  AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{generation}GROUP BY GROUPING SETS ((place), (epoch))
ORDER BY of_epoch, point, epoch

-- name: queue_buckets
-- The stored rows of one queue in [from_s, end_s), one or more per bucket and epoch, in any order; bucket_series.py adds
-- them up as queue_points does. For ranges of few buckets: ClickHouse takes longer to plan queue_points than to read
-- them. `{generation}` selects the rows that count; `{histograms}` are their columns, or empty.
SELECT
{bucket_columns}{histograms}  epoch,
  max_cold_queue_length AS max_cold,
  max_bytes AS highest_bytes,
  max_oldest_message_age_ms AS seen_age_ms,
  last.cold_depth AS cold,
  last.scheduled AS scheduled,
  last.oldest_at AS oldest_ms,
  last.bytes AS bytes,
  last.env_limit AS env_limit,
  first_odometers,
  last_odometers
FROM {table}
WHERE organization_id = {org:String}
  AND project_id = {project:String}
  AND environment_id = {env:String}
  AND queue_name = {queue:String}
  AND bucket_start >= toDateTime({from_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{generation}

-- name: queue_state_before
-- What was known of one queue at `start_s`: per epoch, its newest gauges and odometers. Of each tier the buckets that
-- had ended by then are read: 5 s since `hour_s`, minutes since `day_s` up to `minute_s`, and all hours up to `hour_s`
-- (starts of the minute, hour and day of start_s; `start_at` is start_s as an entry id). They overlap, so that a tier
-- that is behind hides nothing. A queue that was ever seen has a row, if only that of epoch 0; `at` = 0: nothing was
-- known of it yet.
WITH maxIf(last, last.at < {start_at:UInt64}) AS newest
SELECT
  epoch,
  newest.at AS at,
  newest.depth AS depth,
  newest.cold_depth AS cold,
  newest.scheduled AS scheduled,
  newest.running AS running,
  newest.`limit` AS limit,
  newest.oldest_at AS oldest_ms,
  newest.bytes AS bytes,
  newest.env_limit AS env_limit,
  maxMap(last_odometers) AS readings
FROM
(
  SELECT bucket_start, generation, epoch, last, last_odometers
  FROM queue_metrics_5s_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start >= toDateTime({hour_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({start_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, epoch, last, last_odometers
  FROM queue_metrics_by_minute_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start >= toDateTime({day_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({minute_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, epoch, last, last_odometers
  FROM queue_metrics_by_hour_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start < toDateTime({hour_s:UInt32}, 'UTC')
  UNION ALL
  SELECT toDateTime(0, 'UTC'), 0, 0, last, CAST(map(), 'Map(Int16, UInt64)')
  FROM queue_last_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
)
WHERE
{generation}GROUP BY epoch
ORDER BY epoch

-- name: queue_odometers_after
-- Per epoch, where the odometers of one queue stood before their first events from `end_s` on. Buckets are chosen as in
-- queue_state_before, on the other side: 5 s up to `hour_s`, minutes from `minute_s` up to `day_s`, and all hours from
-- `hour_s` (the ends of the minute, hour and day of end_s).
SELECT epoch, minMap(first_odometers) AS readings
FROM
(
  SELECT bucket_start, generation, epoch, first_odometers
  FROM queue_metrics_5s_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start >= toDateTime({end_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({hour_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, epoch, first_odometers
  FROM queue_metrics_by_minute_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start >= toDateTime({minute_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({day_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, epoch, first_odometers
  FROM queue_metrics_by_hour_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND queue_name = {queue:String}
    AND bucket_start >= toDateTime({hour_s:UInt32}, 'UTC')
)
WHERE
{current_generation}GROUP BY epoch

-- One environment ----------------------------------------------------------------------------------------------------

-- name: environment_points
-- One environment over [start_s, end_s), in points of `step_s` seconds: one row per point with data, then one row for
-- the whole window (of_epoch = 1) with its histograms as JSON.
WITH
  intDiv(toUnixTimestamp(bucket_start) - {start_s:UInt32}, {step_s:UInt32}) AS place,
{histograms}  max(last) AS newest
SELECT
  toUInt8(grouping(place)) AS of_epoch,
  place AS point,
  0 AS epoch,
{operation_sums}{duration_sums}{percentiles}  max(max_queue_length) AS max_depth,
  max(max_concurrency_current) AS max_running,
  newest.depth AS depth,
  newest.running AS running,
  newest.`limit` AS limit,
  if(of_epoch, toJSONString(({histogram_sums}, map(), map())), '') AS maps
FROM {table}
WHERE organization_id = {org:String}
  AND project_id = {project:String}
  AND environment_id = {env:String}
  AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{generation}GROUP BY GROUPING SETS ((place), ())
ORDER BY of_epoch, point

-- name: environment_buckets
-- The stored rows of one environment in [from_s, end_s), like queue_buckets.
SELECT
{bucket_columns}{histograms}  toUInt64(0) AS epoch
FROM {table}
WHERE organization_id = {org:String}
  AND project_id = {project:String}
  AND environment_id = {env:String}
  AND bucket_start >= toDateTime({from_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{generation}

-- name: environment_gauges_before
-- The newest gauges of one environment before `start_s`; buckets are chosen as in queue_state_before. Always one row:
-- `known` = 0 if the environment was never seen, `at` = 0 if nothing was known of it yet.
WITH maxIf(last, last.at < {start_at:UInt64}) AS newest
SELECT
  newest.at AS at,
  newest.depth AS depth,
  newest.running AS running,
  newest.`limit` AS limit,
  count() > 0 AS known
FROM
(
  SELECT bucket_start, generation, last
  FROM environment_metrics_5s_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start >= toDateTime({hour_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({start_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, last
  FROM environment_metrics_by_minute_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start >= toDateTime({day_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({minute_s:UInt32}, 'UTC')
  UNION ALL
  SELECT bucket_start, generation, last
  FROM environment_metrics_by_hour_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start < toDateTime({hour_s:UInt32}, 'UTC')
  UNION ALL
  SELECT
    toDateTime(0, 'UTC'),
    0,
    CAST((last.at, last.env_depth, last.env_running, last.env_limit),
      'Tuple(at UInt64, depth UInt32, running UInt32, `limit` Int64)')
  FROM queue_last_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
)
WHERE
{generation}

-- name: environment_parts
-- Gauges that environments do not record, added up over those of their queues, per bucket of the tier: arrays of `places`
-- elements, of which the first is the time before the window (rows since `from_s`) and each other one a bucket. A queue
-- keeps its values until its next row. `known` counts the queues with a value. An age is the highest within the bucket,
-- and if the queue has no row in it, the one at its end, `now_ms` at the latest. `queues` are those with rows, each with
-- the number of the first element in which it has one.
SELECT
  sumForEach(arrayMap(at -> toUInt64(at > 0), at)) AS known,
  sumForEach(cold) AS cold,
  sumForEach(scheduled) AS scheduled,
  sumForEach(bytes) AS bytes,
  maxForEach(age_ms) AS age_ms,
  groupArray((queue_name, first)) AS queues
FROM
(
  WITH
    arrayResize(groupArrayInsertAt(newest.at, place), {places:UInt32}) AS own_at,
    arrayFill((value, own) -> own > 0,
      arrayResize(groupArrayInsertAt(newest.oldest_at, place), {places:UInt32}), own_at) AS oldest_at,
    arrayResize(groupArrayInsertAt(highest_age_ms + 1, place), {places:UInt32}) AS own_age_ms
  SELECT
    queue_name,
    min(place) AS first,
    arrayFill((value, own) -> own > 0, own_at, own_at) AS at,
    arrayFill((value, own) -> own > 0,
      arrayResize(groupArrayInsertAt(toUInt64(newest.cold_depth), place), {places:UInt32}), own_at) AS cold,
    arrayFill((value, own) -> own > 0,
      arrayResize(groupArrayInsertAt(toUInt64(newest.scheduled), place), {places:UInt32}), own_at) AS scheduled,
    arrayFill((value, own) -> own > 0,
      arrayResize(groupArrayInsertAt(newest.bytes, place), {places:UInt32}), own_at) AS bytes,
    arrayMap((own, oldest, number) -> toUInt64(multiIf(
        own > 0, toInt64(own) - 1,
        oldest = 0, toInt64(0),
        greatest(toInt64(0), least(toInt64(({start_s:UInt64} + number * {tier_s:UInt64}) * 1000), {now_ms:Int64})
          - toInt64(oldest)))),
      own_age_ms, oldest_at, range({places:UInt32})) AS age_ms
  FROM
  (
    SELECT
      queue_name,
      toUInt32(if(toUnixTimestamp(bucket_start) < {start_s:UInt64}, 0,
        1 + intDiv(toUnixTimestamp(bucket_start) - {start_s:UInt64}, {tier_s:UInt64}))) AS place,
      max(last) AS newest,
      max(max_oldest_message_age_ms) AS highest_age_ms
    FROM {table}
    WHERE organization_id = {org:String}
      AND project_id = {project:String}
      AND environment_id = {env:String}
      AND bucket_start >= toDateTime({from_s:UInt32}, 'UTC')
      AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
      AND
{generation}    GROUP BY queue_name, place
  )
  GROUP BY queue_name
)

-- name: environment_idle_parts
-- The queues of one environment whose newest event is before `from_at`, added up; `oldest_at` = 0: none of them has a
-- waiting job. `later` are the others.
SELECT
  countIf(newest.at < {from_at:UInt64}) AS queues,
  sumIf(newest.cold_depth, newest.at < {from_at:UInt64}) AS cold,
  sumIf(newest.scheduled, newest.at < {from_at:UInt64}) AS scheduled,
  sumIf(newest.bytes, newest.at < {from_at:UInt64}) AS bytes,
  minIf(newest.oldest_at, newest.at < {from_at:UInt64} AND newest.oldest_at > 0) AS oldest_at,
  groupArrayIf(queue_name, newest.at >= {from_at:UInt64}) AS later
FROM
(
  SELECT queue_name, max(last) AS newest
  FROM queue_last_v1
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
  GROUP BY queue_name
)

-- name: environment_parts_before
-- The newest gauges of some queues of one environment before `start_s`; buckets are chosen as in queue_state_before. A
-- queue that was not seen before has no row.
SELECT
  queue_name,
  newest.cold_depth AS cold,
  newest.scheduled AS scheduled,
  newest.oldest_at AS oldest_at,
  newest.bytes AS bytes
FROM
(
  SELECT queue_name, maxIf(last, last.at < {start_at:UInt64}) AS newest
  FROM
  (
    SELECT bucket_start, generation, queue_name, last
    FROM queue_metrics_5s_v1
    WHERE organization_id = {org:String}
      AND project_id = {project:String}
      AND environment_id = {env:String}
      AND has({queues:Array(String)}, queue_name)
      AND bucket_start >= toDateTime({hour_s:UInt32}, 'UTC')
      AND bucket_start < toDateTime({start_s:UInt32}, 'UTC')
    UNION ALL
    SELECT bucket_start, generation, queue_name, last
    FROM queue_metrics_by_minute_v1
    WHERE organization_id = {org:String}
      AND project_id = {project:String}
      AND environment_id = {env:String}
      AND has({queues:Array(String)}, queue_name)
      AND bucket_start >= toDateTime({day_s:UInt32}, 'UTC')
      AND bucket_start < toDateTime({minute_s:UInt32}, 'UTC')
    UNION ALL
    SELECT bucket_start, generation, queue_name, last
    FROM queue_metrics_by_hour_v1
    WHERE organization_id = {org:String}
      AND project_id = {project:String}
      AND environment_id = {env:String}
      AND has({queues:Array(String)}, queue_name)
      AND bucket_start < toDateTime({hour_s:UInt32}, 'UTC')
    UNION ALL
    SELECT toDateTime(0, 'UTC'), 0, queue_name, last
    FROM queue_last_v1
    WHERE organization_id = {org:String}
      AND project_id = {project:String}
      AND environment_id = {env:String}
      AND has({queues:Array(String)}, queue_name)
  )
  WHERE
{generation}  GROUP BY queue_name
)
WHERE newest.at > 0

-- name: environment_missing_counts
-- All queues of one environment over [start_s, end_s): operations that were counted, and operations beyond those that
-- the odometers of the queues show, as arrays in the order of COUNT_COLUMN in model/event.py. An odometer is read from
-- before the window, as far back as `since_s`; one of an epoch that began later starts at 0. `unsure`: neither is known
-- of some odometer.
SELECT
  sumForEach(counted) AS counted,
  sumForEach(missing) AS missing,
  max(unsure) AS unsure
FROM
(
  SELECT
    arrayMap(verb -> toInt16(verb), range(13)) AS verbs,
    [
      sumIf(enqueue_count, inside),
      sumIf(spill_count, inside),
      sumIf(refill_count, inside),
      sumIf(dequeue_count, inside),
      sumIf(ack_count, inside),
      sumIf(nack_count, inside),
      sumIf(dlq_count, inside),
      sumIf(ttl_expire_count, inside),
      sumIf(cancel_count, inside),
      sumIf(reclaim_count, inside),
      sumIf(release_count, inside),
      sumIf(redrive_count, inside),
      sumIf(defer_count, inside)
    ] AS counted,
    maxMapIf(last_odometers, NOT inside) AS before,
    minMapIf(first_odometers, inside) AS first,
    maxMapIf(last_odometers, inside) AS top,
    arrayMap(verb -> multiIf(mapContains(before, verb), before[verb],
      epoch >= toUInt64({since_s:UInt32}) * 1000, 0, first[verb]), verbs) AS base,
    arrayMap((verb, base, counted) -> toUInt64(greatest(toInt64(top[verb]) - toInt64(base) - toInt64(counted), 0)),
      verbs, base, counted) AS missing,
    arrayExists((verb, base) -> base > 0 AND NOT mapContains(before, verb), verbs, base) AS unsure
  FROM
  (
    SELECT *, bucket_start >= toDateTime({start_s:UInt32}, 'UTC') AS inside
    FROM {table}
    WHERE organization_id = {org:String}
      AND project_id = {project:String}
      AND environment_id = {env:String}
      AND bucket_start >= toDateTime({since_s:UInt32}, 'UTC')
      AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
      AND
{current_generation}  )
  GROUP BY queue_name, epoch
)

-- name: top_queues
-- The queues of one environment with the highest `{value}`, an expression over the columns below: current gauges, and
-- activity in [start_s, end_s). At most `limit`, highest first. Queues without activity are ranked by their gauges;
-- queues of which the value is not known are left out. Ages are measured at `now_ms`.
SELECT
  queue_name,
  {value} AS value,
  newest.depth AS depth,
  newest.cold_depth AS cold,
  newest.scheduled AS scheduled,
  newest.running AS running,
  newest.`limit` AS limit,
  if(newest.`limit` >= 0, newest.`limit`, newest.env_limit) AS effective_limit,
  newest.bytes AS bytes,
  if(newest.oldest_at > 0, greatest({now_ms:Int64} - toInt64(newest.oldest_at), 0), 0) AS age_ms,
  greatest(max_depth, depth) AS highest_depth,
  enqueue_count,
  dequeue_count,
  ack_count,
  nack_count,
  dlq_count,
  ttl_expire_count,
  wait_ms,
  waits,
  run_ms,
  runs,
  wait_p50,
  wait_p95,
  wait_p99,
  run_p95
FROM
(
  SELECT queue_name, max(last) AS newest
  FROM queue_last_v1
  WHERE organization_id = {org:String} AND project_id = {project:String} AND environment_id = {env:String}
  GROUP BY queue_name
) AS now
LEFT JOIN
(
  WITH
{duration_histograms}  max(max_queue_length) AS highest
  SELECT
    queue_name,
{operation_sums}{duration_sums}{duration_percentiles}    highest AS max_depth
  FROM {table}
  WHERE organization_id = {org:String}
    AND project_id = {project:String}
    AND environment_id = {env:String}
    AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
    AND
{generation}  GROUP BY queue_name
) AS activity USING (queue_name)
WHERE value IS NOT NULL
ORDER BY value DESC, queue_name
LIMIT {limit:UInt32}

-- All queues ---------------------------------------------------------------------------------------------------------

-- name: queue_totals
-- All operations that a tier holds, per queue, for comparison with the odometers.
SELECT
  organization_id,
  project_id,
  environment_id,
  queue_name,
  sum(enqueue_count) AS enqueue_count,
  sum(spill_count) AS spill_count,
  sum(refill_count) AS refill_count,
  sum(dequeue_count) AS dequeue_count,
  sum(ack_count) AS ack_count,
  sum(nack_count) AS nack_count,
  sum(dlq_count) AS dlq_count,
  sum(reclaim_count) AS reclaim_count,
  sum(ttl_expire_count) AS ttl_expire_count,
  sum(release_count) AS release_count,
  sum(redrive_count) AS redrive_count,
  sum(cancel_count) AS cancel_count,
  sum(defer_count) AS defer_count
FROM {table}
WHERE
{current_generation}GROUP BY organization_id, project_id, environment_id, queue_name

-- name: queue_tier_rows
-- Everything that a tier holds in [start_s, end_s), merged: one row per queue, epoch and bucket.
SELECT
  organization_id,
  project_id,
  environment_id,
  queue_name,
  toUnixTimestamp(bucket_start) AS start_s,
  epoch,
{operation_sums}  max(max_queue_length) AS max_queue_length,
  max(max_cold_queue_length) AS max_cold_queue_length,
  max(max_concurrency_current) AS max_concurrency_current,
  max(max_env_queue_length) AS max_env_queue_length,
  max(max_env_concurrency) AS max_env_concurrency,
  max(max_oldest_message_age_ms) AS max_oldest_message_age_ms,
  max(max_bytes) AS max_bytes,
  sum(total_wait_duration_ms) AS total_wait_duration_ms,
  sum(wait_duration_count) AS wait_duration_count,
  sum(total_run_duration_ms) AS total_run_duration_ms,
  sum(run_duration_count) AS run_duration_count,
  max(last) AS last,
  sumMap(wait_histogram) AS wait_histogram,
  sumMap(run_histogram) AS run_histogram,
  minMap(first_odometers) AS first_odometers,
  maxMap(last_odometers) AS last_odometers
FROM {table}
WHERE bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current_generation}GROUP BY organization_id, project_id, environment_id, queue_name, bucket_start, epoch

-- name: environment_tier_rows
-- Everything that a tier holds in [start_s, end_s), merged: one row per environment and bucket.
SELECT
  organization_id,
  project_id,
  environment_id,
  toUnixTimestamp(bucket_start) AS start_s,
{operation_sums}  max(max_queue_length) AS max_queue_length,
  max(max_concurrency_current) AS max_concurrency_current,
  sum(total_wait_duration_ms) AS total_wait_duration_ms,
  sum(wait_duration_count) AS wait_duration_count,
  sum(total_run_duration_ms) AS total_run_duration_ms,
  sum(run_duration_count) AS run_duration_count,
  max(last) AS last,
  sumMap(wait_histogram) AS wait_histogram,
  sumMap(run_histogram) AS run_histogram
FROM {table}
WHERE bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current_generation}GROUP BY organization_id, project_id, environment_id, bucket_start

-- name: any_rows
-- One row if a table holds anything in [start_s, end_s), of any generation.
SELECT 1
FROM {table}
WHERE bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
LIMIT 1

-- name: recent_histograms
-- How long jobs of each queue waited and ran in [start_s, end_s): one row per queue with two histograms.
SELECT
  organization_id AS org,
  project_id AS project,
  environment_id AS env,
  queue_name AS queue,
  sumMap(wait_histogram) AS waits,
  sumMap(run_histogram) AS runs
FROM queue_metrics_5s_v1
WHERE bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current_generation}GROUP BY org, project, env, queue

-- Alerts -------------------------------------------------------------------------------------------------------------

-- name: alert_piece_columns
-- Columns of a piece of history for alert rules. `histograms`: 1 to read wait durations too; `slo`: 1 to read them
-- without the buckets (of `bucket_s` seconds) that overlap an unknown period (`unknown_starts`, `unknown_ends`, ms).
  max(max_queue_length) AS max_depth,
  max(max_oldest_message_age_ms) AS max_age_ms,
  max(last) AS newest,
  newest.depth AS depth,
  newest.oldest_at AS oldest_ms,
  sum(dequeue_count) AS dequeues,
  sum(nack_count) + sum(dlq_count) AS failures,
  sum(total_wait_duration_ms) AS wait_ms,
  sum(wait_duration_count) AS waits,
  sumMapIf(wait_histogram, {histograms:UInt8} = 1) AS all_waits,
  sumMapIf(wait_histogram, {slo:UInt8} = 1 AND NOT arrayExists(
    (start_ms, end_ms) -> start_ms < (toUnixTimestamp(bucket_start) + {bucket_s:UInt32}) * 1000
      AND end_ms >= toUnixTimestamp(bucket_start) * 1000,
    {unknown_starts:Array(Int64)}, {unknown_ends:Array(Int64)}
  )) AS known_waits

-- name: alert_window_pieces
-- Activity of the queues of some environments (arrays `orgs`, `projects`, `envs`) in [first of `starts`, end_s), cut at
-- each of `starts` (s): piece 1 begins at the first. A window that begins at the n-th start consists of the pieces from
-- n on, so that any number of windows is read in one pass. See alert_piece_columns for the other parameters.
SELECT
  organization_id AS org,
  project_id AS project,
  environment_id AS env,
  queue_name AS queue,
  arrayCount(start -> start <= toUnixTimestamp(bucket_start), {starts:Array(UInt32)}) AS piece,
{alert_piece_columns}FROM {table}
WHERE (organization_id, project_id, environment_id) IN (
    SELECT name.1, name.2, name.3
    FROM (SELECT arrayJoin(arrayZip({orgs:Array(String)}, {projects:Array(String)}, {envs:Array(String)})) AS name)
  )
  AND bucket_start >= toDateTime(arrayMin({starts:Array(UInt32)}), 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current_generation}GROUP BY org, project, env, queue, piece

-- name: alert_sliding_pieces
-- Activity of the queues `queues` (empty: all) of one environment in [start_s, end_s), cut at the multiples of `step_s`
-- and `offset_s` after each of them, so that no piece crosses an edge of a sliding window. [shared_start_s,
-- shared_end_s) is one piece. `piece` is the start of a piece (s). At most `limit` pieces. See alert_piece_columns for
-- the other parameters.
WITH toUnixTimestamp(bucket_start) AS bucket
SELECT
  queue_name AS queue,
  multiIf(
    bucket >= {shared_start_s:UInt32} AND bucket < {shared_end_s:UInt32}, {shared_start_s:UInt32},
    bucket % {step_s:UInt32} >= {offset_s:UInt32}, bucket - bucket % {step_s:UInt32} + {offset_s:UInt32},
    bucket - bucket % {step_s:UInt32}
  ) AS piece,
{alert_piece_columns}FROM {table}
WHERE organization_id = {org:String}
  AND project_id = {project:String}
  AND environment_id = {env:String}
  AND (empty({queues:Array(String)}) OR has({queues:Array(String)}, queue_name))
  AND bucket_start >= toDateTime({start_s:UInt32}, 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current_generation}GROUP BY queue, piece
LIMIT {limit:UInt32}

-- name: alert_gauges_before
-- The newest gauges before `start_s` of every known queue of some environments; `at` = 0: nothing was known of it yet.
-- What a queue did last is in queue_last_v1, which is all there is to read of queues without activity since; of the
-- others the tiers are read, as in queue_state_before.
WITH
  environments AS
  (
    SELECT name.1 AS o, name.2 AS p, name.3 AS e
    FROM (SELECT arrayJoin(arrayZip({orgs:Array(String)}, {projects:Array(String)}, {envs:Array(String)})) AS name)
  ),
  active AS
  (
    SELECT organization_id, project_id, environment_id, queue_name
    FROM queue_last_v1
    WHERE (organization_id, project_id, environment_id) IN (SELECT o, p, e FROM environments)
    GROUP BY organization_id, project_id, environment_id, queue_name
    HAVING max(last.at) >= {start_at:UInt64}
  )
SELECT
  organization_id AS org,
  project_id AS project,
  environment_id AS env,
  queue_name AS queue,
  maxIf(last, last.at < {start_at:UInt64}) AS newest,
  newest.at AS at,
  newest.depth AS depth,
  newest.oldest_at AS oldest_ms
FROM
(
  SELECT organization_id, project_id, environment_id, queue_name, bucket_start, generation, last
  FROM queue_metrics_5s_v1
  WHERE (organization_id, project_id, environment_id, queue_name) IN (SELECT * FROM active)
    AND bucket_start >= toDateTime({hour_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({start_s:UInt32}, 'UTC')
  UNION ALL
  SELECT organization_id, project_id, environment_id, queue_name, bucket_start, generation, last
  FROM queue_metrics_by_minute_v1
  WHERE (organization_id, project_id, environment_id, queue_name) IN (SELECT * FROM active)
    AND bucket_start >= toDateTime({day_s:UInt32}, 'UTC')
    AND bucket_start < toDateTime({minute_s:UInt32}, 'UTC')
  UNION ALL
  SELECT organization_id, project_id, environment_id, queue_name, bucket_start, generation, last
  FROM queue_metrics_by_hour_v1
  WHERE (organization_id, project_id, environment_id, queue_name) IN (SELECT * FROM active)
    AND bucket_start < toDateTime({hour_s:UInt32}, 'UTC')
  UNION ALL
  SELECT organization_id, project_id, environment_id, queue_name, toDateTime(0, 'UTC'), 0, last
  FROM queue_last_v1
  WHERE (organization_id, project_id, environment_id) IN (SELECT o, p, e FROM environments)
)
WHERE
{current_generation}GROUP BY org, project, env, queue

-- name: pipeline_progress
-- Watermark (ms), the time of the first batch (ms), and how much was lost or unreadable in batches that finished since
-- `since_ms`.
SELECT
  max(watermark_ms) AS watermark_ms,
  toUnixTimestamp64Milli(min(finished_at)) AS since_ms,
  sumIf(lost_events + rewinds + set_aside, finished_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')) AS losses
FROM pipeline_batches_v1

-- name: watermarks_at_steps
-- The highest watermark (ms) of the batches that finished in each step of `step_ms`: step 0 ends at `start_ms` and has
-- no start, the last one ends at `end_ms`.
SELECT
  greatest(0, intDiv(toUnixTimestamp64Milli(finished_at) - {start_ms:Int64} + {step_ms:Int64} - 1, {step_ms:Int64})) AS step,
  max(watermark_ms) AS watermark_ms
FROM pipeline_batches_v1
WHERE finished_at <= fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')
GROUP BY step

-- The pipeline -------------------------------------------------------------------------------------------------------

-- name: pipeline_losses
-- Watermark (ms), the time of the first batch (ms), what was reported as lost in the batches of a window, and the part
-- of it that was reported near the end of the window, from `near_end_ms` on, and may belong after it. The batches of a
-- window finished from `since_ms` on, up to the first whose watermark reaches `end_ms`: events that were not read in
-- time are missed by the batch that comes next. `since_ms` is a little before the window, because batches have the time
-- of the pipeline's clock and events that of Valkey's. Rows are in the order of finished_at, so few are read.
WITH
  (
    SELECT finished_at
    FROM pipeline_batches_v1
    WHERE finished_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AND watermark_ms >= {end_ms:Int64}
    ORDER BY finished_at
    LIMIT 1
  ) AS next
SELECT
  (
    SELECT max(watermark_ms)
    FROM (SELECT watermark_ms FROM pipeline_batches_v1 ORDER BY finished_at DESC LIMIT 100)
  ) AS watermark_ms,
  (
    SELECT toUnixTimestamp64Milli(finished_at) FROM pipeline_batches_v1 ORDER BY finished_at LIMIT 1
  ) AS reported_since_ms,
  sum(lost_events + rewinds + set_aside) AS losses,
  sumIf(lost_events + rewinds + set_aside, next IS NOT NULL AND newest_event_ms >= {near_end_ms:Int64}) AS at_end
FROM pipeline_batches_v1
WHERE finished_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AND (next IS NULL OR finished_at <= next)

-- name: history_state
-- The newest batches (kind 0: when it finished in ms, number, watermark, newest event, losses), the hours that backfills
-- rewrote (kind 1: start and end in s, generation), and the coverage of each shard (kind 2: first and last entry id, sum
-- of the lengths of its intervals). A union of plain queries: scalar subqueries cost several times as much.
SELECT *
FROM
(
  SELECT
    toUInt8(0) AS kind,
    toUnixTimestamp64Milli(finished_at) AS a,
    toInt64(batch_id) AS b,
    toInt64(watermark_ms) AS c,
    toInt64(newest_event_ms) AS d,
    toInt64(lost_events + rewinds + set_aside) AS e
  FROM pipeline_batches_v1
  ORDER BY finished_at DESC
  LIMIT {batches:UInt32}
)
UNION ALL
SELECT toUInt8(1), toInt64(toUnixTimestamp(start)), toInt64(toUnixTimestamp(`end`)), toInt64(generation), toInt64(0), toInt64(0)
FROM history_windows_v1
UNION ALL
SELECT toUInt8(2), toInt64(min(from_at)), toInt64(max(to_at)), toInt64(sum(length)), toInt64(0), toInt64(0)
FROM pipeline_coverage_by_hour_v1
GROUP BY shard

-- name: first_batch
-- When the oldest known batch finished (ms).
SELECT toUnixTimestamp64Milli(finished_at) AS finished_ms FROM pipeline_batches_v1 ORDER BY finished_at LIMIT 1

-- name: newest_batches
-- The newest `limit` batches that finished since `since_ms`, newest first.
SELECT
  toUnixTimestamp64Milli(finished_at) AS finished_ms,
  batch_id,
  events,
  rows,
  duration_ms,
  if(events = 0, NULL, greatest(toUnixTimestamp64Milli(readable_at) - oldest_event_ms, 0)) AS fresh_after_ms,
  lost_events,
  set_aside,
  rewinds
FROM pipeline_batches_v1
WHERE finished_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
ORDER BY finished_at DESC
LIMIT {limit:UInt32}

-- name: batch_totals
-- Totals and percentiles (ms) of all batches that finished since `since_ms`, and the highest watermark ever. Freshness
-- is weighted by events; each counts with the age of the oldest event of its batch.
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
  (SELECT max(watermark_ms) FROM pipeline_batches_v1) AS watermark
FROM pipeline_batches_v1
WHERE finished_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')

-- name: freshness
-- The 99th percentile (ms) of how long it took until events could be read, in batches that finished since `since`, and
-- the number of events. Each event counts with the age of the oldest event of its batch, so this is an upper bound.
SELECT
  quantileExactWeighted(0.99)(greatest(toUnixTimestamp64Milli(readable_at) - oldest_event_ms, 0), events) AS p99,
  sum(events) AS total
FROM pipeline_batches_v1
WHERE finished_at >= {since:DateTime64(3, 'UTC')}

-- name: watermark
-- The time up to which every shard was read (ms); 0: not known.
SELECT max(watermark_ms) FROM pipeline_batches_v1

-- name: coverage_hours
-- Hours of shards with a gap inside or before them that concerns entries after `start_at` up to `end_at` (entry ids).
-- before_at: where the hour before ended; first = 1: the first hour of a shard.
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

-- name: coverage_gaps
-- Gaps between the intervals of one shard that end from `since_at` up to `until_at` (entry ids). A batch with missing
-- records is a gap as a whole: any of them may have held rows of any of its time.
SELECT
  if(earlier_batch_to_at > reached_at, earlier_batch_from_at, reached_at) AS gap_from_at,
  if(batch_from_at < from_at, batch_to_at, from_at) AS gap_to_at,
  if(batch_from_event > earlier_event, batch_from_event - earlier_event, 0) AS events
FROM
(
  SELECT
    from_at,
    batch_from_at,
    batch_to_at,
    batch_from_event,
    row_number() OVER (ORDER BY to_at, from_at) AS number,
    max(to_at) OVER earlier AS reached_at,
    max(batch_to_event) OVER earlier AS earlier_event,
    lagInFrame(batch_from_at) OVER before AS earlier_batch_from_at,
    lagInFrame(batch_to_at) OVER before AS earlier_batch_to_at
  FROM pipeline_coverage_v1
  WHERE shard = {shard:UInt32} AND to_at >= {since_at:UInt64} AND to_at <= {until_at:UInt64}
  WINDOW
    earlier AS (ORDER BY to_at, from_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
    before AS (ORDER BY to_at, from_at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
WHERE number > 1 AND from_at > reached_at
ORDER BY gap_from_at

-- Backfills ----------------------------------------------------------------------------------------------------------

-- name: history_windows
-- Start and end (s) of all windows that backfills wrote again.
SELECT toInt64(toUnixTimestamp(start)) AS start_s, toInt64(toUnixTimestamp(end)) AS end_s FROM history_windows_v1

-- name: highest_generation
-- The highest generation that a backfill has taken; 0: none.
SELECT max(generation)
FROM (SELECT generation FROM history_generations_v1 UNION ALL SELECT generation FROM history_windows_v1)

-- name: generation_owner
-- Who took a generation.
SELECT taken_by FROM history_generations_v1 WHERE generation = {generation:UInt32}

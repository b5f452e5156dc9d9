-- Buckets of active queues, a queue's one after the other, {jobs} to twice as many jobs in each. Values are hashes, so
-- that they compress like real ones and are the same in every run. The views fill the other tables.
INSERT INTO queue_metrics_5s_v1 (
  organization_id, project_id, environment_id, queue_name, bucket_start, epoch, enqueue_count, dequeue_count, ack_count,
  nack_count, max_queue_length, max_concurrency_current, max_env_queue_length, max_env_concurrency,
  max_oldest_message_age_ms, max_bytes, last, total_wait_duration_ms, wait_duration_count, total_run_duration_ms,
  run_duration_count, wait_histogram, run_histogram, first_odometers, last_odometers)
WITH
  intDiv(number, {buckets:UInt64}) AS queue,
  number % {buckets:UInt64} AS place,
  {start_s:UInt64} + place * 5 AS at_s,
  {jobs:UInt64} + cityHash64(number, 1) % {jobs:UInt64} AS enqueued,
  {jobs:UInt64} + cityHash64(number, 2) % {jobs:UInt64} AS done,
  cityHash64(number, 3) % 1000 AS depth,
  cityHash64(number, 4) % 50 AS running,
  least(done, 20) AS wait_buckets,
  least(done, 12) AS run_buckets,
  2 * {jobs:UInt64} * place AS before
SELECT
  'acme', 'shop', concat('env-', toString(queue % {environments:UInt64})),
  concat('queue-', leftPad(toString(queue), 4, '0')), toDateTime(at_s, 'UTC'), toUInt64({start_s:UInt64} * 1000),
  enqueued, done, done, cityHash64(number, 5) % 2, depth + 20, running + 1, depth * 3, running * 3,
  cityHash64(number, 6) % 60000, depth * 300,
  (at_s * 1000 * 1048576 + cityHash64(number, 7) % 5000000000, depth, 0, cityHash64(number, 8) % 100, running, 50,
    at_s * 1000 - cityHash64(number, 6) % 60000, depth * 290, 0, depth * 3, running * 3, 100),
  done * (cityHash64(number, 9) % 3000), done, done * (cityHash64(number, 10) % 500), done,
  mapFromArrays(
    arrayMap(i -> toInt16(120 + i), range(wait_buckets)),
    arrayMap(i -> toUInt64(1 + cityHash64(number, i, 11) % 5), range(wait_buckets))),
  mapFromArrays(
    arrayMap(i -> toInt16(90 + i), range(run_buckets)),
    arrayMap(i -> toUInt64(1 + cityHash64(number, i, 12) % 8), range(run_buckets))),
  map(toInt16(0), before, toInt16(3), before, toInt16(4), before),
  map(toInt16(0), before + enqueued, toInt16(3), before + done, toInt16(4), before + done)
FROM numbers({queues:UInt64} * {buckets:UInt64})

-- Buckets of many queues, in the order of the table: a queue's one after the other, two of every three.
INSERT INTO {table} (
  organization_id, project_id, environment_id, queue_name, bucket_start, epoch, enqueue_count, dequeue_count, ack_count,
  nack_count, max_queue_length, max_concurrency_current, max_oldest_message_age_ms, max_bytes, last,
  total_wait_duration_ms, wait_duration_count, total_run_duration_ms, run_duration_count, wait_histogram, run_histogram,
  first_odometers, last_odometers)
WITH
  intDiv(number, {rows:UInt64}) AS queue,
  number % {rows:UInt64} AS place,
  {start_s:UInt64} + intDiv(place * 3, 2) * {step_s:UInt64} AS at_s
SELECT
  'acme', 'shop', 'prod', concat('queue-', leftPad(toString(queue), 4, '0')), toDateTime(at_s, 'UTC'),
  toUInt64({start_s:UInt64} * 1000), 210, 210, 210, place % 3, 50 + place % 90, 5 + place % 4, 3000 + place % 1000, 5000,
  (at_s * 1000 * 1048576, place % 50, 0, 0, 5, 10, at_s * 1000 - 2000, 4000, 0, 500, 50, 100),
  210 * (20 + place % 9), 210, 210 * 7, 210,
  -- 210 waits in 20 buckets of a histogram, and as many runs in 10.
  {waits}, {runs},
  map(toInt16(0), 210 * place, toInt16(3), 210 * place, toInt16(4), 210 * place),
  map(toInt16(0), 210 * place + 210, toInt16(3), 210 * place + 210, toInt16(4), 210 * place + 210)
FROM numbers({queues:UInt64} * {rows:UInt64})

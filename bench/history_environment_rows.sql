-- Every bucket of one environment.
INSERT INTO {table} (
  organization_id, project_id, environment_id, bucket_start, enqueue_count, dequeue_count, ack_count, nack_count,
  max_queue_length, max_concurrency_current, last, total_wait_duration_ms, wait_duration_count, total_run_duration_ms,
  run_duration_count, wait_histogram, run_histogram)
WITH {start_s:UInt64} + number * {step_s:UInt64} AS at_s
SELECT
  'acme', 'shop', 'prod', toDateTime(at_s, 'UTC'), 2100, 2100, 2100, number % 3, 500 + number % 90, 50,
  (at_s * 1000 * 1048576, 500, 50, 100), 2100 * 20, 210, 2100 * 7, 210, {waits}, {runs}
FROM numbers({rows:UInt64})

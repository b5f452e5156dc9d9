-- What the queues of some environments did in [first of starts, end_s), in the pieces that `starts` cut it into: piece 1
-- begins at the first of them. A window that begins at the n-th is the pieces from n on, so that windows of any number
-- are read in one pass.
SELECT
  organization_id AS org,
  project_id AS project,
  environment_id AS env,
  queue_name AS queue,
  arrayCount(start -> start <= toUnixTimestamp(bucket_start), {starts:Array(UInt32)}) AS piece,
  max(max_queue_length) AS max_depth,
  max(max_oldest_message_age_ms) AS max_age_ms,
  max(last) AS newest,
  newest.depth AS depth,
  newest.oldest_at AS oldest_ms,
  sum(dequeue_count) AS dequeues,
  sum(nack_count) + sum(dlq_count) AS failures,
  sum(total_wait_duration_ms) AS wait_ms,
  sum(wait_duration_count) AS waits,
  sumMapIf(wait_histogram, {histograms:UInt8} = 1) AS wait_histogram
FROM {table}
WHERE (organization_id, project_id, environment_id) IN (
    SELECT name.1, name.2, name.3
    FROM (SELECT arrayJoin(arrayZip({orgs:Array(String)}, {projects:Array(String)}, {envs:Array(String)})) AS name)
  )
  AND bucket_start >= toDateTime(arrayMin({starts:Array(UInt32)}), 'UTC')
  AND bucket_start < toDateTime({end_s:UInt32}, 'UTC')
  AND
{current}GROUP BY org, project, env, queue, piece

-- Everything a tier has counted, per queue: what odometers are compared with.
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
  sum(cancel_count) AS cancel_count
FROM {table}
WHERE
{current}GROUP BY organization_id, project_id, environment_id, queue_name

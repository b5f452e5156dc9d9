-- What is to be added to the counters of a queue so that they agree with its rows.
SELECT rows.waiting - q.waiting AS waiting, rows.waiting_bytes - q.waiting_bytes AS waiting_bytes,
  rows.delayed - q.delayed AS delayed, rows.delayed_bytes - q.delayed_bytes AS delayed_bytes,
  (SELECT count(*) FROM dead_jobs d WHERE d.queue_id = q.id) - q.dead AS dead,
  q.spilled + q.redriven - q.refilled - q.expired - q.cancelled - q.quarantined - q.waiting - q.delayed AS unaccounted
FROM cold_queues q, LATERAL (
  SELECT count(*) FILTER (WHERE NOT delayed) AS waiting,
    coalesce(sum(size) FILTER (WHERE NOT delayed), 0)::bigint AS waiting_bytes,
    count(*) FILTER (WHERE delayed) AS delayed, coalesce(sum(size) FILTER (WHERE delayed), 0)::bigint AS delayed_bytes
  FROM cold_queue_entries e WHERE e.queue_id = q.id
) rows
WHERE q.id = %(queue_id)s

-- All queues of one environment over [start_s, end_s): how often each verb was counted, and how often more it happened by
-- the queues' own odometers; in the order of COUNT_COLUMN in model/event.py. An odometer is read from before the window,
-- as far back as since_s; one of an epoch that began later began at 0. `unsure`: one of which neither is known.
SELECT
  sumForEach(counted) AS counted,
  sumForEach(missing) AS missing,
  max(unsure) AS unsure
FROM
(
  SELECT
    arrayMap(verb -> toInt16(verb), range(12)) AS verbs,
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
      sumIf(redrive_count, inside)
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
{current}  )
  GROUP BY queue_name, epoch
)

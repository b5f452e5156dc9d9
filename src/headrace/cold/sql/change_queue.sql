-- Every change of a queue's counters, with the numbers to tell Valkey. No row if the epoch is closed or the cold tier
-- would be too full.
UPDATE cold_queues SET
  version = version + 1,
  epoch = CASE WHEN %(close)s::bigint IS NULL THEN greatest(epoch, %(epoch)s::bigint)
    ELSE greatest(epoch, %(close)s::bigint) + 1 END,
  waiting = waiting + %(waiting)s,
  waiting_bytes = waiting_bytes + %(waiting_bytes)s,
  delayed = delayed + %(delayed)s,
  delayed_bytes = delayed_bytes + %(delayed_bytes)s,
  dead = dead + %(dead)s,
  spilled = spilled + %(spilled)s,
  redriven = redriven + %(redriven)s,
  refilled = refilled + %(refilled)s,
  expired = expired + %(expired)s,
  cancelled = cancelled + %(cancelled)s,
  quarantined = quarantined + %(quarantined)s,
  removed = removed + %(removed)s,
  valkey_epoch = coalesce(%(valkey_epoch)s::bigint, valkey_epoch),
  spilled_then = CASE WHEN valkey_epoch = coalesce(%(valkey_epoch)s::bigint, valkey_epoch) THEN spilled_then ELSE spilled END,
  redriven_then = CASE WHEN valkey_epoch = coalesce(%(valkey_epoch)s::bigint, valkey_epoch) THEN redriven_then ELSE redriven END,
  expired_then = CASE WHEN valkey_epoch = coalesce(%(valkey_epoch)s::bigint, valkey_epoch) THEN expired_then ELSE expired END,
  cancelled_then = CASE WHEN valkey_epoch = coalesce(%(valkey_epoch)s::bigint, valkey_epoch) THEN cancelled_then ELSE cancelled END
WHERE id = %(queue_id)s AND (%(org)s::text IS NULL OR (org, project, env, queue) = (%(org)s, %(project)s, %(env)s, %(queue)s))
  AND (%(epoch)s::bigint IS NULL OR epoch <= %(epoch)s::bigint)
  AND (%(max_items)s::bigint IS NULL OR waiting + delayed + %(waiting)s + %(delayed)s <= %(max_items)s::bigint)
  AND (%(max_bytes)s::bigint IS NULL
    OR waiting_bytes + delayed_bytes + %(waiting_bytes)s + %(delayed_bytes)s <= %(max_bytes)s::bigint)
RETURNING valkey_epoch, version, epoch, waiting, delayed, waiting_bytes + delayed_bytes AS bytes, dead,
  spilled - spilled_then AS spilled, expired - expired_then AS expired, cancelled - cancelled_then AS cancelled,
  redriven - redriven_then AS redriven, pg_current_xact_id()::text::bigint AS xact,
  (SELECT i.id::text FROM cold_identity i) AS postgres_id

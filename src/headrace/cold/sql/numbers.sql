-- What to tell Valkey of the queues of a shard, as change_queue returns it.
SELECT id AS queue_id, org, project, env, queue, valkey_epoch, version, epoch, waiting, delayed,
  waiting_bytes + delayed_bytes AS bytes, dead, spilled - spilled_then AS spilled, expired - expired_then AS expired,
  cancelled - cancelled_then AS cancelled, redriven - redriven_then AS redriven
FROM cold_queues WHERE shard = %(shard)s ORDER BY id

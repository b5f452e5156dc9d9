  -- A point of several buckets: where its rows begin and end, and how old the oldest job grew between two buckets with
  -- nothing in between. `steps` and the same moved by one are pairs of neighbours.
  toUnixTimestamp(min(bucket_start)) AS first_s,
  toUnixTimestamp(max(bucket_start)) AS last_s,
  if({step_s:UInt32} > {tier_s:UInt32}, arrayMax(
    (before, after) -> if(before.3 > 0 AND after.2 > before.2 + {tier_s:UInt32}, greatest(after.2 * 1000 - before.3, 0), 0),
    arraySort(groupArray((last.at, toInt64(toUnixTimestamp(bucket_start)), toInt64(last.oldest_at)))) AS steps,
    arrayPushBack(arrayPopFront(steps), steps[-1])), 0) AS gap_age_ms,

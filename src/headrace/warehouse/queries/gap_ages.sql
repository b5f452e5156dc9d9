  -- Where the rows of the point begin and end, and how old the oldest job grew between two of its buckets with nothing in
  -- between. `steps` and the same moved by one are pairs of neighbours.
  toUnixTimestamp(min(bucket_start)) AS first_s,
  toUnixTimestamp(max(bucket_start)) AS last_s,
  arrayMax(
    (before, after) -> if(before.3 > 0 AND after.2 > before.2 + {tier_s:UInt32}, greatest(after.2 * 1000 - before.3, 0), 0),
    arraySort(groupArray((last.at, toInt64(toUnixTimestamp(bucket_start)), toInt64(last.oldest_at)))) AS steps,
    arrayPushBack(arrayPopFront(steps), steps[-1])) AS gap_age_ms,

  -- Rows of the generation that counts in their hour. One set answers for all, so that a query sees a window before it
  -- was flipped or after: for each hour of a window it holds the highest generation, whose rows are taken, and 0, whose
  -- rows are not.
  ((toUnixTimestamp(toStartOfHour(bucket_start)), generation) IN (
    SELECT hour, arrayJoin([max(generation), 0])
    FROM
    (
      SELECT arrayJoin(range(toUnixTimestamp(start), toUnixTimestamp(`end`), 3600)) AS hour, generation
      FROM history_windows_v1
    )
    GROUP BY hour
  )) = (generation > 0)

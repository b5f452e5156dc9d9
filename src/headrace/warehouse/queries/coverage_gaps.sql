-- Gaps between the intervals of one shard that end from since_at up to until_at. A batch of which some records are missing
-- is a gap as a whole: any of them may have held rows of any of its time.
SELECT
  if(earlier_batch_to_at > reached_at, earlier_batch_from_at, reached_at) AS gap_from_at,
  if(batch_from_at < from_at, batch_to_at, from_at) AS gap_to_at,
  if(batch_from_event > earlier_event, batch_from_event - earlier_event, 0) AS events
FROM
(
  SELECT
    from_at,
    batch_from_at,
    batch_to_at,
    batch_from_event,
    row_number() OVER (ORDER BY to_at, from_at) AS number,
    max(to_at) OVER earlier AS reached_at,
    max(batch_to_event) OVER earlier AS earlier_event,
    lagInFrame(batch_from_at) OVER before AS earlier_batch_from_at,
    lagInFrame(batch_to_at) OVER before AS earlier_batch_to_at
  FROM pipeline_coverage_v1
  WHERE shard = {shard:UInt32} AND to_at >= {since_at:UInt64} AND to_at <= {until_at:UInt64}
  WINDOW
    earlier AS (ORDER BY to_at, from_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
    before AS (ORDER BY to_at, from_at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
WHERE number > 1 AND from_at > reached_at
ORDER BY gap_from_at

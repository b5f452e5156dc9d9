-- Dead jobs for which nobody has any more use, longest dead first.
DELETE FROM dead_jobs WHERE seq IN (
  SELECT seq FROM dead_jobs
  WHERE queue_id = %(queue_id)s
    AND (%(ids)s::text[] IS NULL OR job_id = ANY(%(ids)s::text[]))
    AND (%(task)s = '' OR task = %(task)s)
    AND (%(error)s = '' OR position(%(error)s IN error) > 0)
    AND (%(from_ms)s::bigint IS NULL OR buried_ms >= %(from_ms)s::bigint)
    AND (%(until_ms)s::bigint IS NULL OR buried_ms <= %(until_ms)s::bigint)
  ORDER BY buried_ms, seq
  LIMIT %(most)s
)

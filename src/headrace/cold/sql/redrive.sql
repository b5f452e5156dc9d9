-- Dead jobs wait again, with all their attempts, in the order in which they were buried. An id that died twice is one
-- job, its newest death; one that waits here already stays dead.
WITH chosen AS (
  SELECT seq FROM dead_jobs d
  WHERE queue_id = %(queue_id)s
    AND (%(ids)s::text[] IS NULL OR job_id = ANY(%(ids)s::text[]))
    AND (%(task)s = '' OR task = %(task)s)
    AND (%(error)s = '' OR position(%(error)s IN error) > 0)
    AND (%(from_ms)s::bigint IS NULL OR buried_ms >= %(from_ms)s::bigint)
    AND (%(until_ms)s::bigint IS NULL OR buried_ms <= %(until_ms)s::bigint)
    AND NOT EXISTS (SELECT 1 FROM cold_queue_entries e WHERE e.job_id = d.job_id AND e.queue_id = d.queue_id)
    AND NOT EXISTS (SELECT 1 FROM dead_jobs n
      WHERE n.job_id = d.job_id AND n.queue_id = d.queue_id AND n.buried_ms > d.buried_ms)
  ORDER BY buried_ms, seq
  LIMIT %(most)s
), gone AS (
  DELETE FROM dead_jobs WHERE seq IN (SELECT seq FROM chosen) RETURNING *
)
INSERT INTO cold_queue_entries (queue_id, job_id, task, flow, flow_type, payload, size, priority, max_attempts,
  enqueued_ms, due_ms, delayed)
SELECT queue_id, job_id, task, flow, flow_type, payload, size, priority, max_attempts, enqueued_ms,
  %(now)s + (row_number() OVER (ORDER BY buried_ms, seq) - 1) / 4096.0, false
FROM gone
ORDER BY buried_ms, seq
RETURNING task, flow, flow_type, size

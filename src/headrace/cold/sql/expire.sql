-- `now` has fractions: compared as it is, it would turn every TTL into a fraction first, and leave the index unused.
DELETE FROM cold_queue_entries
WHERE seq IN (
  SELECT seq FROM cold_queue_entries
  WHERE queue_id = %(queue_id)s AND expires_ms <= floor(%(now)s::double precision)::bigint AND seq <> ALL(%(had)s::bigint[])
  ORDER BY expires_ms
  LIMIT %(most)s
)
RETURNING seq, task, flow, flow_type, size, delayed

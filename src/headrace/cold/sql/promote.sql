-- Rows that are due and found no room wait for it from now on, like the others. Not those that are placed in Valkey.
UPDATE cold_queue_entries SET delayed = false
WHERE seq IN (
  SELECT seq FROM cold_queue_entries
  WHERE queue_id = %(queue_id)s AND delayed AND due_ms <= %(until)s AND seq <> ALL(%(placed)s::bigint[])
  ORDER BY due_ms
  LIMIT %(most)s
)
RETURNING task, flow, flow_type, size

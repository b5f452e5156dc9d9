-- Counts and oldest per flow of what waits here.
SELECT q.org, q.project, q.env, q.queue, d.task, d.flow, d.flow_type, d.waiting, (
    SELECT e.due_ms FROM cold_queue_entries e
    WHERE e.queue_id = d.queue_id AND NOT e.delayed AND e.task = d.task AND e.flow = d.flow AND e.flow_type = d.flow_type
    ORDER BY e.due_ms LIMIT 1
  ) AS oldest_ms
FROM cold_details d JOIN cold_queues q ON q.id = d.queue_id
WHERE d.waiting > 0
  AND (%(org)s::text IS NULL OR q.org = %(org)s::text) AND (%(project)s::text IS NULL OR q.project = %(project)s::text)
  AND (%(env)s::text IS NULL OR q.env = %(env)s::text)
  AND (%(queue)s::text IS NULL OR q.queue = %(queue)s::text)
ORDER BY 1, 2, 3, 4, 5, 6, 7

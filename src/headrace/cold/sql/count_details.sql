INSERT INTO cold_details (queue_id, task, flow, flow_type, waiting)
SELECT %(queue_id)s, * FROM unnest(%(tasks)s::text[], %(flows)s::text[], %(flow_types)s::text[], %(counts)s::bigint[])
ORDER BY 2, 3, 4 -- always in the same order: two producers must not wait for each other
ON CONFLICT (queue_id, task, flow, flow_type) DO UPDATE SET waiting = cold_details.waiting + excluded.waiting

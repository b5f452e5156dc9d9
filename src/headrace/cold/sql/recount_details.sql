SELECT task, flow, flow_type, coalesce(rows.waiting, 0) - coalesce(d.waiting, 0) AS missing
FROM (SELECT * FROM cold_details WHERE queue_id = %(queue_id)s) d
FULL JOIN (
  SELECT task, flow, flow_type, count(*) AS waiting FROM cold_queue_entries
  WHERE queue_id = %(queue_id)s AND NOT delayed GROUP BY 1, 2, 3
) rows USING (task, flow, flow_type)
WHERE coalesce(rows.waiting, 0) <> coalesce(d.waiting, 0)

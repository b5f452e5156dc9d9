-- Delete rows whose jobs are in Valkey. A number alone is not enough: a PostgreSQL that was restored to an earlier point
-- uses numbers again, for other jobs. (An empty job id: not known, placed by an earlier release.)
DELETE FROM cold_queue_entries e
USING unnest(%(seqs)s::bigint[], %(job_ids)s::text[]) AS placed (seq, job_id)
WHERE e.seq = placed.seq AND e.queue_id = %(queue_id)s AND (placed.job_id = '' OR e.job_id = placed.job_id)
RETURNING e.seq, e.task, e.flow, e.flow_type, e.size, e.delayed

WITH gone AS (DELETE FROM cold_queue_entries WHERE seq = ANY(%(seqs)s) RETURNING *)
INSERT INTO cold_quarantine
SELECT gone.*, reasons.reason FROM gone
JOIN unnest(%(seqs)s::bigint[], %(reasons)s::text[]) AS reasons (seq, reason) USING (seq)

DELETE FROM cold_queue_entries WHERE seq = ANY(%(seqs)s) RETURNING seq, task, flow, flow_type, size, delayed

DELETE FROM cold_queue_entries WHERE seq = ANY(%(seqs)s)

DELETE FROM autoscale_decisions WHERE decided_at < now() - %(keep_s)s * interval '1 second'

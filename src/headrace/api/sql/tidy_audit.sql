DELETE FROM audit_log WHERE at < now() - make_interval(secs => %(keep_s)s::double precision)

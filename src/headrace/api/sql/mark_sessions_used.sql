UPDATE api_sessions SET last_used_at = now() WHERE id = ANY(%(ids)s)

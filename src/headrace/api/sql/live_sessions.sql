SELECT id, hash, key_id, expires_at FROM api_sessions WHERE expires_at > now()

DELETE FROM api_sessions WHERE expires_at <= now() OR key_id IN (SELECT id FROM api_keys WHERE revoked_at IS NOT NULL)

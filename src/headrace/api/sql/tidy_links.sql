DELETE FROM api_links WHERE expires_at <= now()

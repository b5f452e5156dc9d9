INSERT INTO api_links (hash, key_id, expires_at)
VALUES (%(hash)s, %(key_id)s, now() + make_interval(secs => %(life_s)s::double precision))

INSERT INTO api_sessions (id, hash, key_id, via, address, user_agent, expires_at)
VALUES (%(id)s, %(hash)s, %(key_id)s, %(via)s, %(address)s, %(user_agent)s,
  now() + make_interval(secs => %(life_s)s::double precision))

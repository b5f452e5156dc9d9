-- Newest first: those of one key, and those of all keys within a scope if there is one to look into.
SELECT s.id, s.key_id, k.name AS key_name, k.level, k.org, k.project, k.env, s.via, s.address, s.user_agent,
  s.created_at, s.last_used_at, s.expires_at
FROM api_sessions s JOIN api_keys k ON k.id = s.key_id
WHERE s.expires_at > now() AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
  AND (%(id)s::text IS NULL OR s.id = %(id)s)
  AND (s.key_id = %(key_id)s OR (%(is_admin)s
    AND (%(org)s::text IS NULL OR k.org = %(org)s)
    AND (%(project)s::text IS NULL OR k.project = %(project)s)
    AND (%(env)s::text IS NULL OR k.env = %(env)s)))
  AND (%(before_at)s::timestamptz IS NULL OR (s.created_at, s.id) < (%(before_at)s, %(before_id)s::text))
ORDER BY s.created_at DESC, s.id DESC LIMIT %(limit)s

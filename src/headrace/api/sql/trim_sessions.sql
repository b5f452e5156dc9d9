-- Of one key the newest are kept.
DELETE FROM api_sessions WHERE id IN (
  SELECT id FROM api_sessions WHERE key_id = %(key_id)s ORDER BY created_at DESC, id OFFSET %(most)s
)

-- Keys. A live key is neither revoked nor expired.

-- name: add_key
-- Add a key with the SHA-256 `hash` of its text, which expires after `expires_s` seconds (NULL: never). A NULL `org`,
-- `project` or `env`: all. Returns when it expires.
INSERT INTO api_keys (id, name, hash, org, project, env, level, expires_at)
VALUES (%(id)s, %(name)s, %(hash)s, %(org)s, %(project)s, %(env)s, %(level)s,
  now() + make_interval(secs => %(expires_s)s::double precision)) -- NULL: never
RETURNING expires_at

-- name: count_keys
-- Count the live keys that reach no further than a tenant. An empty `project` or `env` matches all.
SELECT count(*) FROM api_keys
WHERE org = %(org)s AND (%(project)s = '' OR project = %(project)s) AND (%(env)s = '' OR env = %(env)s)
  AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())

-- name: list_keys
-- Return all keys, also revoked and expired ones, oldest first.
SELECT id, name, org, project, env, level, created_at, last_used_at, expires_at, revoked_at
FROM api_keys ORDER BY created_at, id

-- name: find_key
-- Return one live key.
SELECT id, name, hash, org, project, env, level, expires_at FROM api_keys
WHERE id = %(id)s AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())

-- name: list_live_keys
-- Return all live keys.
SELECT id, name, hash, org, project, env, level, expires_at FROM api_keys
WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())

-- name: find_unrevoked_key_ids
-- Return the ids of keys with this name that are not revoked; they may have expired.
SELECT id FROM api_keys WHERE name = %(name)s AND revoked_at IS NULL

-- name: revoke_key
-- Revoke a key; returns its name and scope, or no row if it does not exist or is revoked already.
UPDATE api_keys SET revoked_at = now() WHERE id = %(id)s AND revoked_at IS NULL RETURNING name, org, project, env

-- name: mark_keys_used
-- Record that the keys `ids` were used now.
UPDATE api_keys SET last_used_at = now() WHERE id = ANY(%(ids)s)

-- Sessions of browsers -----------------------------------------------------------------------------------------------

-- name: add_session
-- Add a session that ends after `life_s` seconds, with the SHA-256 `hash` of its secret.
INSERT INTO api_sessions (id, hash, key_id, via, address, user_agent, expires_at)
VALUES (%(id)s, %(hash)s, %(key_id)s, %(via)s, %(address)s, %(user_agent)s,
  now() + make_interval(secs => %(life_s)s::double precision))

-- name: delete_excess_sessions
-- Delete the sessions of a key but for the newest `most`.
DELETE FROM api_sessions WHERE id IN (
  SELECT id FROM api_sessions WHERE key_id = %(key_id)s ORDER BY created_at DESC, id OFFSET %(most)s
)

-- name: delete_session
-- End a session; returns its id if it existed.
DELETE FROM api_sessions WHERE id = %(id)s RETURNING id

-- name: list_sessions
-- Return sessions that have not ended, of live keys, newest first: those of the key `key_id`, and with `is_admin` also
-- those of all keys within the scope `org`, `project`, `env` (NULL matches all). At most `limit`, before the position
-- `before_at`, `before_id` (NULL: from the newest). `id`: only this session (NULL: all).
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

-- name: list_live_sessions
-- Return all sessions that have not ended.
SELECT id, hash, key_id, expires_at FROM api_sessions WHERE expires_at > now()

-- name: mark_sessions_used
-- Record that the sessions `ids` were used now.
UPDATE api_sessions SET last_used_at = now() WHERE id = ANY(%(ids)s)

-- name: purge_sessions
-- Delete sessions that ended, and those of revoked keys.
DELETE FROM api_sessions WHERE expires_at <= now() OR key_id IN (SELECT id FROM api_keys WHERE revoked_at IS NOT NULL)

-- Links that sign in a browser once ----------------------------------------------------------------------------------

-- name: add_link
-- Add a link that can be used for `life_s` seconds, with the SHA-256 `hash` of its token.
INSERT INTO api_links (hash, key_id, expires_at)
VALUES (%(hash)s, %(key_id)s, now() + make_interval(secs => %(life_s)s::double precision))

-- name: consume_link
-- Delete a link and return the id of its key; no row if it was used, has expired or never existed. Of two requests with
-- the same link, only one deletes the row.
DELETE FROM api_links WHERE hash = %(hash)s AND expires_at > now() RETURNING key_id

-- name: purge_links
-- Delete links that have expired.
DELETE FROM api_links WHERE expires_at <= now()

-- Audit log ----------------------------------------------------------------------------------------------------------

-- name: begin_audit_entry
-- Record an action before it is performed; returns the id of the entry.
INSERT INTO audit_log (key_id, key_name, org, project, env, queue, action, details, address)
VALUES (%(key_id)s, %(key_name)s, %(org)s, %(project)s, %(env)s, %(queue)s, %(action)s, %(details)s::jsonb, %(address)s)
RETURNING id

-- name: end_audit_entry
-- Add the outcome of an action to its entry, and more `details`.
UPDATE audit_log SET outcome = %(outcome)s, details = details || %(details)s::jsonb WHERE id = %(id)s

-- name: list_audit_entries
-- Return the entries within a scope, newest first, at most `limit` with an id below `before` (NULL: from the newest). A
-- NULL `org`, `project` or `env` matches all.
SELECT id, at, key_id, key_name, org, project, env, queue, action, details, outcome, address FROM audit_log
WHERE (%(before)s::bigint IS NULL OR id < %(before)s)
  AND (%(org)s::text IS NULL OR org = %(org)s)
  AND (%(project)s::text IS NULL OR project = %(project)s)
  AND (%(env)s::text IS NULL OR env = %(env)s)
ORDER BY id DESC LIMIT %(limit)s

-- name: purge_audit_entries
-- Delete entries older than `keep_s` seconds.
DELETE FROM audit_log WHERE at < now() - make_interval(secs => %(keep_s)s::double precision)

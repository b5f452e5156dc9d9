-- Of two who come with the same link, one deletes the row.
DELETE FROM api_links WHERE hash = %(hash)s AND expires_at > now() RETURNING key_id

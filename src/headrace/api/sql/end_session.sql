DELETE FROM api_sessions WHERE id = %(id)s RETURNING id

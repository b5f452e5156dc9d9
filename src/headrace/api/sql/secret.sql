SELECT value FROM api_secrets WHERE name = %(name)s

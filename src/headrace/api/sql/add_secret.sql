INSERT INTO api_secrets (name, value) VALUES (%(name)s, %(value)s) ON CONFLICT (name) DO NOTHING

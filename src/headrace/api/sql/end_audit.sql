UPDATE audit_log SET outcome = %(outcome)s, details = details || %(details)s::jsonb WHERE id = %(id)s

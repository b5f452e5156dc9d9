INSERT INTO audit_log (key_id, key_name, org, project, env, queue, action, details, address)
VALUES (%(key_id)s, %(key_name)s, %(org)s, %(project)s, %(env)s, %(queue)s, %(action)s, %(details)s::jsonb, %(address)s)
RETURNING id

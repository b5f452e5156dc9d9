INSERT INTO server_event_losses (event_id, org, project, env, queue, missing)
VALUES (%(event_id)s, %(org)s, %(project)s, %(env)s, %(queue)s, %(missing)s)

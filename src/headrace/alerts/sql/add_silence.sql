INSERT INTO alert_silences (id, org, project, env, rule_id, queue, reason, made_by, starts_at, ends_at)
VALUES (%(id)s, %(org)s, %(project)s, %(env)s, %(rule_id)s, %(queue)s, %(reason)s, %(made_by)s, %(starts_at)s, %(ends_at)s)

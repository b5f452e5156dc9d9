INSERT INTO autoscale_types (name, org, project, env, config, state, workers, wanted, known, sentence, decided_at, fresh_until)
VALUES (%(name)s, %(org)s, %(project)s, %(env)s, %(config)s, %(state)s, %(workers)s, %(wanted)s, %(known)s, %(sentence)s,
  to_timestamp(%(at_ms)s / 1000.0), clock_timestamp() + %(fresh_s)s * interval '1 second')
ON CONFLICT (name) DO UPDATE
SET org = excluded.org, project = excluded.project, env = excluded.env, config = excluded.config, state = excluded.state,
  workers = excluded.workers, wanted = excluded.wanted, known = excluded.known, sentence = excluded.sentence,
  decided_at = excluded.decided_at, fresh_until = excluded.fresh_until

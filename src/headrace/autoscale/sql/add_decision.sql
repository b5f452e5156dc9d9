INSERT INTO autoscale_decisions (type, org, project, env, decided_at, verb, current, wanted, known, sentence, inputs)
VALUES (%(type)s, %(org)s, %(project)s, %(env)s, to_timestamp(%(at_ms)s / 1000.0), %(verb)s, %(current)s, %(wanted)s,
  %(known)s, %(sentence)s, %(inputs)s)

WITH added AS (
  INSERT INTO cold_queues (shard, org, project, env, queue)
  VALUES (%(shard)s, %(org)s, %(project)s, %(env)s, %(queue)s)
  ON CONFLICT DO NOTHING
  RETURNING id
)
INSERT INTO cold_movers (queue_id) SELECT id FROM added

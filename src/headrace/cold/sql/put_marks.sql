INSERT INTO valkey_marks (shard, org, project, env, queue, epoch, accepted, held)
SELECT %(shard)s, * FROM unnest(
  %(orgs)s::text[], %(projects)s::text[], %(envs)s::text[], %(queues)s::text[],
  %(epochs)s::text[], %(accepted)s::bigint[], %(held)s::bigint[]
)
ON CONFLICT (shard, org, project, env, queue)
DO UPDATE SET epoch = excluded.epoch, accepted = excluded.accepted, held = excluded.held

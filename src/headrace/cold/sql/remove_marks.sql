DELETE FROM valkey_marks m
USING unnest(%(orgs)s::text[], %(projects)s::text[], %(envs)s::text[], %(queues)s::text[]) AS gone (org, project, env, queue)
WHERE m.shard = %(shard)s
  AND (m.org, m.project, m.env, m.queue) = (gone.org, gone.project, gone.env, gone.queue)

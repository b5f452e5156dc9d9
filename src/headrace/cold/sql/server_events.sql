-- The latest events of servers with the queues of a tenant that lost jobs, those that lost most first: one row per event
-- and queue, without queue if there is none. Totals count all queues of the tenant, also those beyond the limit.
SELECT e.id, e.noticed_at, e.server, e.shard, e.kind, e.description, coalesce(l.all_missing, 0), coalesce(l.all_queues, 0),
  l.org, l.project, l.env, l.queue, l.missing
FROM (
  SELECT * FROM server_events
  WHERE noticed_at > now() - make_interval(secs => coalesce(%(within_s)s::double precision, 3e9))
  ORDER BY id DESC LIMIT %(most)s
) e
LEFT JOIN LATERAL (
  SELECT org, project, env, queue, missing, (sum(missing) OVER ())::bigint AS all_missing, count(*) OVER () AS all_queues
  FROM server_event_losses
  WHERE event_id = e.id AND org = coalesce(%(org)s, org) AND project = coalesce(%(project)s, project)
    AND env = coalesce(%(env)s, env)
  ORDER BY missing DESC, org, project, env, queue LIMIT %(most_losses)s::bigint
) l ON true
ORDER BY e.id DESC, l.missing DESC, l.org, l.project, l.env, l.queue

-- The latest events of servers with the queues that lost jobs; one row per event and queue, without queue if there is none.
SELECT e.id, e.noticed_at, e.server, e.shard, e.kind, e.description, l.org, l.project, l.env, l.queue, l.missing
FROM (SELECT * FROM server_events ORDER BY id DESC LIMIT %(most)s) e LEFT JOIN server_event_losses l ON l.event_id = e.id
ORDER BY e.id DESC, l.missing DESC, l.org, l.project, l.env, l.queue

INSERT INTO server_events (server, shard, kind, description)
VALUES (%(server)s, %(shard)s, %(kind)s, %(description)s) RETURNING id

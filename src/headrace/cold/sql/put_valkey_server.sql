INSERT INTO valkey_servers (shard, replication_id, version) VALUES (%(shard)s, %(replication_id)s, %(version)s)
ON CONFLICT (shard) DO UPDATE SET replication_id = excluded.replication_id, version = excluded.version

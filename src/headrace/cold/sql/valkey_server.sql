SELECT replication_id, version FROM valkey_servers WHERE shard = %(shard)s

-- Valkey has numbers of a later version: PostgreSQL was restored to an earlier point. From here on its versions are later.
UPDATE cold_queues SET version = greatest(version, %(known)s) + 1 WHERE id = %(queue_id)s

-- Dead jobs may be removed: by operators, or because they are older than cold.keep_dead.
ALTER TABLE cold_queues ADD COLUMN removed bigint NOT NULL DEFAULT 0; -- dead jobs, ever

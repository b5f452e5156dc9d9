-- Ids that callers chose, of jobs that wait or are dead here: one row per environment and id, whatever the queue. It is
-- inserted and deleted in the same transaction as the row of the job. (Generated ids are random and have none.) Ids of
-- rows that earlier releases stored are added by the audit, as are those that they store later; two old jobs of one id
-- share a row, which is deleted with the last of them.
CREATE TABLE cold_ids (
  org     text NOT NULL,
  project text NOT NULL,
  env     text NOT NULL,
  job_id  text NOT NULL,
  token   text NOT NULL, -- the same as in Valkey's entry for this id: tells it from an earlier or later one
  PRIMARY KEY (org, project, env, job_id)
);

COMMENT ON TABLE cold_ids IS 'Chosen ids of jobs in PostgreSQL, unique per environment. Valkey has a copy that scripts read.';

-- Rows come and go, as in cold_queue_entries.
ALTER TABLE cold_ids SET (
  autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

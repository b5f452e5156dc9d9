-- Jobs that do not fit into Valkey, and everything needed to bring them back in order and exactly once.
-- Rows are written and deleted by Headrace itself; there are no triggers. Times are those of the Valkey server, in
-- milliseconds since 1970; `cold_jobs` shows them as timestamps.

-- One row per queue that ever had a job here. Its counters change in the same transaction as the rows they count.
CREATE TABLE cold_queues (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  shard          integer NOT NULL,
  org            text NOT NULL,
  project        text NOT NULL,
  env            text NOT NULL,
  queue          text NOT NULL,

  -- A spill carries the epoch under which it was told to spill; one of an older epoch is refused. Closing an epoch
  -- is how a queue leaves cold mode while jobs keep coming.
  epoch          bigint NOT NULL DEFAULT 1,
  -- Grows with every change of this row: Valkey ignores numbers older than those it has.
  version        bigint NOT NULL DEFAULT 0,

  -- What is here now.
  waiting        bigint NOT NULL DEFAULT 0, -- could run
  waiting_bytes  bigint NOT NULL DEFAULT 0,
  delayed        bigint NOT NULL DEFAULT 0, -- not yet due
  delayed_bytes  bigint NOT NULL DEFAULT 0,
  dead           bigint NOT NULL DEFAULT 0,

  -- What ever happened here. spilled + redriven = refilled + expired + cancelled + quarantined + waiting + delayed
  spilled        bigint NOT NULL DEFAULT 0,
  redriven       bigint NOT NULL DEFAULT 0,
  refilled       bigint NOT NULL DEFAULT 0,
  expired        bigint NOT NULL DEFAULT 0,
  cancelled      bigint NOT NULL DEFAULT 0,
  quarantined    bigint NOT NULL DEFAULT 0,

  -- The life of the queue in Valkey (its epoch there) that odometers count from, and the totals at its begin.
  valkey_epoch   bigint NOT NULL DEFAULT 0,
  spilled_then   bigint NOT NULL DEFAULT 0,
  redriven_then  bigint NOT NULL DEFAULT 0,
  expired_then   bigint NOT NULL DEFAULT 0,
  cancelled_then bigint NOT NULL DEFAULT 0,

  UNIQUE (org, project, env, queue)
) WITH (fillfactor = 50); -- room for the many versions of a row that is updated all the time

COMMENT ON TABLE cold_queues IS 'Queues with jobs in PostgreSQL: epoch and exact counters.';

-- Whoever moves jobs of a queue holds its row here, so that nobody passes a mover that was paused.
-- Apart from cold_queues, whose row every spill updates.
CREATE TABLE cold_movers (
  queue_id bigint PRIMARY KEY REFERENCES cold_queues (id)
);

CREATE TABLE cold_queue_entries (
  seq          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- never used twice
  queue_id     bigint NOT NULL,
  job_id       text NOT NULL,
  task         text NOT NULL,
  flow         text NOT NULL, -- '': none
  flow_type    text NOT NULL,
  payload      bytea NOT NULL,
  size         integer NOT NULL,
  priority     smallint NOT NULL,
  max_attempts integer NOT NULL,
  enqueued_ms  bigint NOT NULL,
  due_ms       double precision NOT NULL, -- fractions keep the order of jobs that came together
  expires_ms   bigint,
  delayed      boolean NOT NULL -- waits until it is due, not for room
);

COMMENT ON TABLE cold_queue_entries IS 'One row per job that waits in PostgreSQL.';

-- A payload is compressed by its producer or not at all: trying again here costs more than it saves.
ALTER TABLE cold_queue_entries ALTER COLUMN payload SET STORAGE EXTERNAL;
-- Rows come and go. Half a million dead ones make a claim wait some milliseconds (./hr bench cold); a vacuum reads all
-- indexes, so it should not come for every few.
ALTER TABLE cold_queue_entries SET (
  autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

-- The same id twice is one job; and where is this job?
CREATE UNIQUE INDEX cold_queue_entries_job ON cold_queue_entries (job_id, queue_id);
-- The next ones: by priority, eligible time, arrival.
CREATE INDEX cold_queue_entries_next ON cold_queue_entries (queue_id, priority DESC, due_ms, seq)
  WHERE NOT delayed;
-- Due soon.
CREATE INDEX cold_queue_entries_due ON cold_queue_entries (queue_id, due_ms) WHERE delayed;
CREATE INDEX cold_queue_entries_expiry ON cold_queue_entries (queue_id, expires_ms) WHERE expires_ms IS NOT NULL;
-- The oldest per flow. (Counts are in cold_details.)
CREATE INDEX cold_queue_entries_detail ON cold_queue_entries (queue_id, task, flow, flow_type, due_ms)
  WHERE NOT delayed;

-- How many wait, by what they are part of.
CREATE TABLE cold_details (
  queue_id  bigint NOT NULL REFERENCES cold_queues (id),
  task      text NOT NULL,
  flow      text NOT NULL, -- '': none
  flow_type text NOT NULL,
  waiting   bigint NOT NULL,
  PRIMARY KEY (queue_id, task, flow, flow_type)
) WITH (fillfactor = 50);

-- A producer that lost its connection while it committed finds out here whether it did. Kept for an hour.
CREATE TABLE cold_spills (
  id uuid PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT now()
);

-- Rows that could not be moved. They block nobody and are not lost.
CREATE TABLE cold_quarantine (
  LIKE cold_queue_entries,
  reason         text NOT NULL,
  quarantined_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (seq)
);

-- Jobs that failed for good, until somebody redrives them.
CREATE TABLE dead_jobs (
  seq          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue_id     bigint NOT NULL REFERENCES cold_queues (id),
  job_id       text NOT NULL,
  task         text NOT NULL,
  flow         text NOT NULL, -- '': none
  flow_type    text NOT NULL,
  payload      bytea NOT NULL,
  size         integer NOT NULL,
  priority     smallint NOT NULL,
  attempts     integer NOT NULL,
  max_attempts integer NOT NULL,
  enqueued_ms  bigint NOT NULL,
  buried_ms    bigint NOT NULL,
  error        text NOT NULL,
  UNIQUE (job_id, queue_id, buried_ms)
);
CREATE INDEX dead_jobs_oldest ON dead_jobs (queue_id, buried_ms, seq);

-- What operators decided: limits, pause, close, caps. Valkey has a copy that scripts read; this is the record.
CREATE TABLE queue_settings (
  org        text NOT NULL,
  project    text NOT NULL,
  env        text NOT NULL,
  queue      text NOT NULL, -- '': the environment itself
  name       text NOT NULL,
  value      text NOT NULL,
  changed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (org, project, env, queue, name)
);

-- For people.
CREATE VIEW cold_jobs AS
SELECT q.org, q.project, q.env, q.queue, e.job_id, e.task, e.flow, e.flow_type, e.size, e.priority,
  to_timestamp(e.enqueued_ms / 1000.0) AS enqueued_at, to_timestamp(e.due_ms / 1000.0) AS due_at,
  to_timestamp(e.expires_ms / 1000.0) AS expires_at, e.delayed, e.seq
FROM cold_queue_entries e JOIN cold_queues q ON q.id = e.queue_id;

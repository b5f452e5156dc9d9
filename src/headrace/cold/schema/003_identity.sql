-- Which PostgreSQL this is. Valkey keeps the id beside its jobs: a producer or mover that is led to another PostgreSQL
-- is refused, because jobs that wait there would not be seen. Copies of this database (a backup, a standby) keep the id.
CREATE TABLE cold_identity (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  id       uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO cold_identity DEFAULT VALUES;

-- What happened to a server: it failed over, lost data, was restored to an earlier point, or was replaced.
CREATE TABLE server_events (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  noticed_at  timestamptz NOT NULL DEFAULT now(),
  server      text NOT NULL CHECK (server IN ('valkey', 'postgres')),
  shard       integer NOT NULL,
  kind        text NOT NULL,
  description text NOT NULL
);
CREATE INDEX server_events_time ON server_events (noticed_at);

-- Of each queue, accepted jobs that are missing since, as far as counters tell.
CREATE TABLE server_event_losses (
  event_id bigint NOT NULL REFERENCES server_events (id) ON DELETE CASCADE,
  org      text NOT NULL,
  project  text NOT NULL,
  env      text NOT NULL,
  queue    text NOT NULL,
  missing  bigint NOT NULL,
  PRIMARY KEY (event_id, org, project, env, queue)
);

-- What movers last saw in each shard's Valkey, so that any of them notices what a failover or restart lost, whichever
-- leads then.
CREATE TABLE valkey_servers (
  shard          integer PRIMARY KEY,
  replication_id text NOT NULL, -- changes when the server restarts or a replica takes over
  version        bigint NOT NULL -- grows with every change here or in valkey_marks
);

CREATE TABLE valkey_marks (
  shard    integer NOT NULL,
  org      text NOT NULL,
  project  text NOT NULL,
  env      text NOT NULL,
  queue    text NOT NULL,
  epoch    text NOT NULL, -- of the queue; another one if it was made anew
  accepted bigint NOT NULL, -- jobs since then
  held     bigint NOT NULL, -- jobs in Valkey
  PRIMARY KEY (shard, org, project, env, queue)
) WITH (fillfactor = 70); -- only columns without an index change, often

COMMENT ON TABLE valkey_marks IS 'What each queue had accepted and held when the leading mover last looked.';

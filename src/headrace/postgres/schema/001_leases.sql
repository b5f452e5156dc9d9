-- Who does what only one process may do at a time. `token` grows with every new holder, and every write checks that its
-- own is here still.
CREATE TABLE leases (
  name   text PRIMARY KEY,
  holder text NOT NULL,
  token  bigint NOT NULL,
  until  timestamptz NOT NULL
);

COMMENT ON TABLE leases IS 'One row per kind of work: who does it now, under which number, until when.';

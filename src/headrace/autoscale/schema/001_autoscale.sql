-- Worker types as the autoscaler last saw them, and every decision about them.

CREATE TABLE autoscale_types (
  name        text PRIMARY KEY,
  org         text, -- NULL: of every organisation, and so on
  project     text,
  env         text,
  config      jsonb NOT NULL, -- see autoscale/worker_types.py
  state       jsonb NOT NULL, -- what one decision leaves to the next
  workers     integer, -- that really ran; NULL: nobody could tell
  wanted      integer NOT NULL,
  known       boolean NOT NULL, -- everything that the last decision is based on
  sentence    text NOT NULL, -- of the last decision
  decided_at  timestamptz NOT NULL,
  fresh_until timestamptz NOT NULL -- later than this nobody knows how many there should be
);

COMMENT ON TABLE autoscale_types IS 'One row per worker type of the file that the autoscaler was started with.';

CREATE TABLE autoscale_decisions (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  type       text NOT NULL,
  org        text, -- whose the type was then: a name may be given to another
  project    text,
  env        text,
  decided_at timestamptz NOT NULL,
  verb       text NOT NULL CHECK (verb IN ('up', 'down', 'hold')),
  current    integer NOT NULL, -- wanted before
  wanted     integer NOT NULL,
  known      boolean NOT NULL,
  sentence   text NOT NULL,
  inputs     jsonb NOT NULL
);
CREATE INDEX autoscale_decisions_type ON autoscale_decisions (type, id DESC);
CREATE INDEX autoscale_decisions_at ON autoscale_decisions (decided_at);

-- Rules, what became of them, and the messages about it.

-- Grows with every change of a rule or a channel: whoever holds a copy sees that it is old.
CREATE TABLE alert_revision (
  single   boolean PRIMARY KEY DEFAULT true CHECK (single),
  revision bigint NOT NULL
);
INSERT INTO alert_revision (revision) VALUES (1);

CREATE TABLE alert_channels (
  id         text PRIMARY KEY,
  org        text NOT NULL,
  project    text NOT NULL,
  env        text NOT NULL,
  name       text NOT NULL,
  type       text NOT NULL CHECK (type IN ('slack', 'email', 'webhook', 'apprise')),
  config     jsonb NOT NULL, -- addresses and secrets: what is in here is never shown
  target     text NOT NULL, -- where it leads, as far as that may be shown
  health     boolean NOT NULL DEFAULT false, -- is told too when rules cannot be evaluated
  enabled    boolean NOT NULL DEFAULT true,
  failures   integer NOT NULL DEFAULT 0, -- in a row
  retry_at   timestamptz, -- not before this
  last_error text,
  last_sent  timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (org, project, env, name)
);

COMMENT ON TABLE alert_channels IS 'Where messages go: one row per Slack webhook, address list, webhook or Apprise URL.';

CREATE TABLE alert_rules (
  id           text PRIMARY KEY,
  org          text NOT NULL,
  project      text NOT NULL,
  env          text NOT NULL,
  name         text NOT NULL,
  queue        text, -- NULL: each queue of the environment by itself
  metric       text NOT NULL,
  operator     text NOT NULL,
  threshold    double precision NOT NULL,
  percentile   text NOT NULL,
  window_s     integer NOT NULL,
  cooldown_s   integer NOT NULL,
  for_s        integer NOT NULL,
  severity     text NOT NULL,
  enabled      boolean NOT NULL,
  auto_resolve boolean NOT NULL,
  channels     text[] NOT NULL, -- ids; one that is gone is passed over
  created_at   timestamptz NOT NULL DEFAULT now(),
  updated_at   timestamptz NOT NULL DEFAULT now(),
  UNIQUE (org, project, env, name)
);

COMMENT ON TABLE alert_rules IS 'What is watched; see alerts/rules.py for what is allowed.';

-- Where each rule stands with each queue. No row: ok, and nothing to remember. Times are the evaluator's, in ms.
CREATE TABLE alert_states (
  rule_id  text NOT NULL,
  queue    text NOT NULL, -- '': of a rule that is not about queues
  phase    text NOT NULL,
  since_ms bigint NOT NULL,
  clean_ms bigint,
  fired_ms bigint[] NOT NULL,
  incident text,
  told     boolean NOT NULL,
  value    double precision,
  PRIMARY KEY (rule_id, queue)
);

CREATE TABLE alert_incidents (
  id              text PRIMARY KEY,
  rule_id         text NOT NULL,
  rule            jsonb NOT NULL, -- as it was when it fired
  org             text NOT NULL, -- '': of no tenant, Headrace's own health
  project         text NOT NULL,
  env             text NOT NULL,
  queue           text NOT NULL,
  severity        text NOT NULL,
  channels        text[] NOT NULL, -- who is told that it is over, whatever becomes of the rule
  value           double precision,
  fired_at        timestamptz NOT NULL,
  acknowledged_at timestamptz,
  acknowledged_by text,
  resolved_at     timestamptz,
  reason          text -- why it was resolved, if not by itself
);
CREATE INDEX alert_incidents_tenant ON alert_incidents (org, project, env, fired_at DESC);
CREATE INDEX alert_incidents_open ON alert_incidents (org, project, env) WHERE resolved_at IS NULL;

CREATE TABLE alert_transitions (
  id       text PRIMARY KEY,
  rule_id  text NOT NULL,
  queue    text NOT NULL,
  incident text, -- NULL: never became one
  kind     text NOT NULL CHECK (kind IN ('pending', 'ok', 'firing', 'resolved')),
  at       timestamptz NOT NULL,
  value    double precision,
  told     boolean NOT NULL -- channels were told of it
);
CREATE INDEX alert_transitions_incident ON alert_transitions (incident, at);
CREATE INDEX alert_transitions_at ON alert_transitions (at);

CREATE TABLE alert_silences (
  id         text PRIMARY KEY,
  org        text NOT NULL,
  project    text NOT NULL,
  env        text NOT NULL,
  rule_id    text, -- NULL: every rule
  queue      text, -- NULL: every queue
  reason     text NOT NULL,
  made_by    text NOT NULL,
  starts_at  timestamptz NOT NULL,
  ends_at    timestamptz NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  CHECK (ends_at > starts_at AND starts_at > '2000-01-01' AND ends_at < '3000-01-01') -- what every evaluator can read
);
CREATE INDEX alert_silences_end ON alert_silences (ends_at);

-- Messages to send: written in the transaction that decides, so that none is forgotten. A row is one message to one
-- channel. Its id goes out with it each time it is tried, so that a receiver knows a repeat.
CREATE TABLE alert_outbox (
  seq          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id           text NOT NULL UNIQUE,
  channel_id   text NOT NULL REFERENCES alert_channels (id) ON DELETE CASCADE,
  message      jsonb NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  attempts     integer NOT NULL DEFAULT 0,
  delivered_at timestamptz,
  given_up_at  timestamptz,
  error        text
);
CREATE INDEX alert_outbox_waiting ON alert_outbox (channel_id, seq) WHERE delivered_at IS NULL AND given_up_at IS NULL;
CREATE INDEX alert_outbox_created ON alert_outbox (created_at);

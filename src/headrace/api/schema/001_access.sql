-- Who may use the API, and what they did.

-- The text of a key is shown once, when it is made; here is its SHA-256.
CREATE TABLE api_keys (
  id           text PRIMARY KEY, -- the first part of the key's text
  name         text NOT NULL,
  hash         bytea NOT NULL,
  org          text, -- NULL: all; then project and env are NULL too
  project      text,
  env          text,
  level        text NOT NULL CHECK (level IN ('read', 'operate', 'admin')),
  created_at   timestamptz NOT NULL DEFAULT now(),
  last_used_at timestamptz, -- to about a minute
  expires_at   timestamptz,
  revoked_at   timestamptz,
  CHECK (project IS NULL OR org IS NOT NULL),
  CHECK (env IS NULL OR project IS NOT NULL)
);

COMMENT ON TABLE api_keys IS 'Keys of the API: scope, level and hash.';

-- What all API processes sign with; made by the first of them.
CREATE TABLE api_secrets (
  name       text PRIMARY KEY,
  value      bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

-- Links that sign in a browser, once. A row is deleted when its link is used.
CREATE TABLE api_links (
  hash       bytea PRIMARY KEY,
  key_id     text NOT NULL REFERENCES api_keys (id),
  expires_at timestamptz NOT NULL
);

-- Written before an operation is done; the outcome is added after it. One that stays 'begun' was cut off.
CREATE TABLE audit_log (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at       timestamptz NOT NULL DEFAULT now(),
  key_id   text, -- NULL: on the command line
  key_name text NOT NULL,
  org      text, -- NULL: not about one tenant
  project  text,
  env      text,
  queue    text,
  action   text NOT NULL,
  details  jsonb NOT NULL DEFAULT '{}',
  outcome  text NOT NULL DEFAULT 'begun' CHECK (outcome IN ('begun', 'done', 'refused', 'failed')),
  address  text NOT NULL
);
CREATE INDEX audit_log_at ON audit_log (at);
CREATE INDEX audit_log_tenant ON audit_log (org, project, env, id);

COMMENT ON TABLE audit_log IS 'What was done through the API, by whom.';

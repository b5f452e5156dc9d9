-- Browsers that are signed in. A row is deleted when its session is ended; the cookie is then worth nothing.
CREATE TABLE api_sessions (
  id           text PRIMARY KEY, -- shown in lists; no secret
  hash         bytea NOT NULL, -- SHA-256 of the secret that the cookie holds beside the id
  key_id       text NOT NULL REFERENCES api_keys (id),
  via          text NOT NULL CHECK (via IN ('key', 'link')), -- how it began
  address      text NOT NULL, -- where it began
  user_agent   text NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  last_used_at timestamptz, -- to about a minute
  expires_at   timestamptz NOT NULL
);
CREATE INDEX api_sessions_key ON api_sessions (key_id, created_at);

COMMENT ON TABLE api_sessions IS 'Sessions of browsers, each of which stands for a key.';

-- What other processes report about themselves, for the evaluator to raise an incident. A row is repeated while its
-- problem lasts, and removed when it is over.
CREATE TABLE alert_problems (
  source      text PRIMARY KEY, -- which part of which process
  detail      text NOT NULL,
  reported_at timestamptz NOT NULL DEFAULT now()
);

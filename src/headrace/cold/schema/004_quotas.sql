-- What operators allow tenants to use. Only operators write here: unscoped admin keys, `headrace quotas`, settings.
CREATE TABLE quotas (
  org        text NOT NULL, -- '': the default of every environment
  project    text NOT NULL, -- '': the organisation
  env        text NOT NULL, -- '': the project
  name       text NOT NULL,
  value      bigint,        -- NULL: no quota, whatever the default is
  changed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (org, project, env, name)
);

COMMENT ON TABLE quotas IS 'Quotas of environments, projects and organisations. Valkey has a copy that scripts read.';

-- How much of the quotas of its project and organisation each environment may use in Valkey. A share is written here before
-- it is raised in Valkey and after it was lowered there, so the sum of these is never less than what is given out.
CREATE TABLE quota_shares (
  org     text NOT NULL,
  project text NOT NULL,
  env     text NOT NULL,
  name    text NOT NULL,
  value   bigint NOT NULL,
  PRIMARY KEY (org, project, env, name)
);

-- The number of the last round in which shares were given out; scripts refuse shares of an earlier one.
CREATE TABLE quota_rounds (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  round    bigint NOT NULL DEFAULT 0
);
INSERT INTO quota_rounds DEFAULT VALUES;

-- The quotas that hold for a tenant: its own, those of its project and organisation, the defaults.
SELECT org, project, env, name, value FROM quotas
WHERE name = ANY(%(names)s) AND org IN ('', %(org)s) AND project IN ('', %(project)s) AND env IN ('', %(env)s)

-- Remember the spill, and read the quotas that it has to keep within.
WITH remembered AS (INSERT INTO cold_spills (id) VALUES (%(id)s))
SELECT org, project, env, name, value FROM quotas
WHERE name IN ('cold_jobs', 'cold_bytes') AND org IN ('', %(org)s) AND project IN ('', %(project)s) AND env IN ('', %(env)s)

-- name: repeatable_read
-- Let all statements of this transaction read the database as of one moment, and write nothing.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- name: count_quota_use
-- Count per tenant what PostgreSQL holds besides jobs: one row per quota and tenant. Keys are counted while they are
-- live.
SELECT 'rules' AS quota, org, project, env, count(*) AS used FROM alert_rules GROUP BY org, project, env
UNION ALL
SELECT 'channels', org, project, env, count(*) FROM alert_channels GROUP BY org, project, env
UNION ALL
SELECT 'keys', org, coalesce(project, ''), coalesce(env, ''), count(*) FROM api_keys
WHERE org IS NOT NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
GROUP BY 2, 3, 4

SELECT org, project, env, name, value FROM quotas ORDER BY 1, 2, 3, 4

SELECT org, project, env, name, value FROM quota_shares

SELECT org, project, env, queue, name, value FROM queue_settings ORDER BY 1, 2, 3, 4, 5

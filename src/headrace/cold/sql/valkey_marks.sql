SELECT org, project, env, queue, epoch, accepted, held FROM valkey_marks WHERE shard = %(shard)s

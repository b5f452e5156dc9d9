-- What waits in PostgreSQL of an environment, a project or an organisation.
SELECT coalesce(sum(waiting + delayed), 0)::bigint AS cold_jobs,
  coalesce(sum(waiting_bytes + delayed_bytes), 0)::bigint AS cold_bytes
FROM cold_queues
WHERE org = %(org)s AND (%(project)s = '' OR project = %(project)s) AND (%(env)s = '' OR env = %(env)s)

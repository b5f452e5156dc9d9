INSERT INTO leases AS held (name, holder, token, until)
VALUES (%(name)s, %(holder)s, 1, clock_timestamp() + %(lease_s)s * interval '1 second')
ON CONFLICT (name) DO UPDATE
SET token = held.token + (held.holder <> excluded.holder)::integer, holder = excluded.holder, until = excluded.until
WHERE held.holder = excluded.holder OR held.until < clock_timestamp()
RETURNING token

-- name: acquire_lease
-- Acquire or renew a lease for `lease_s` seconds. Returns its token, which is 1 higher for each new holder; no row:
-- another process holds it.
INSERT INTO leases AS held (name, holder, token, until)
VALUES (%(name)s, %(holder)s, 1, clock_timestamp() + %(lease_s)s * interval '1 second')
ON CONFLICT (name) DO UPDATE
SET token = held.token + (held.holder <> excluded.holder)::integer, holder = excluded.holder, until = excluded.until
WHERE held.holder = excluded.holder OR held.until < clock_timestamp()
RETURNING token

-- name: check_lease
-- Return one row if the lease is still this holder's, and let no other process acquire it until the transaction ends.
SELECT 1 FROM leases WHERE name = %(name)s AND holder = %(holder)s AND token = %(token)s FOR SHARE

-- name: release_lease
-- End a lease that this holder has.
UPDATE leases SET until = '-infinity' WHERE name = %(name)s AND holder = %(holder)s AND token = %(token)s

-- name: read_role_rights
-- Return what the role of this connection may do beyond its own databases. A superuser is a member of every role.
SELECT current_user::text AS role,
       rolsuper AS superuser,
       rolcreaterole AS createrole,
       rolcreatedb AS createdb,
       rolreplication AS replication,
       rolbypassrls AS bypassrls,
       ARRAY(
           SELECT granted.rolname::text FROM pg_roles AS granted
           WHERE granted.rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files')
             AND pg_has_role(current_user, granted.oid, 'MEMBER')
           ORDER BY granted.rolname
       ) AS memberships
FROM pg_roles WHERE rolname = current_user

-- What the role of this connection may do beyond its own databases. A superuser is a member of every role.
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

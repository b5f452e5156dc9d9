"""Everything that uses psycopg: connections, transactions, migrations, named queries, leases. Other packages keep their
own `.sql` files."""

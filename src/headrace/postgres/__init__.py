"""The home of psycopg: connections, migrations, named queries. The rooms above keep their own `.sql`."""

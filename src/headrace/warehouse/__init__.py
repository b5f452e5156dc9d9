"""History in ClickHouse, one module per table. The only package that imports clickhouse_connect."""

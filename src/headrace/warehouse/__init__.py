"""The home of clickhouse_connect: history in ClickHouse, one module per table."""

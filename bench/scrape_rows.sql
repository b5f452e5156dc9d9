CREATE TABLE {table} (id bigint, series integer NOT NULL, created_at timestamptz NOT NULL)
  WITH (autovacuum_enabled = off);
INSERT INTO {table}
SELECT i, i % {series} + 1, now() - i % 86400 * interval '1 second' FROM generate_series(1, {rows}) i;
CREATE INDEX ON {table} (series);
ANALYZE {table};

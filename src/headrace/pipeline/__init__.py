"""The pipeline: reads metric events from Valkey's streams with Spark, aggregates them and stores history in ClickHouse
through a spool, counting each event once. The only package that imports pyspark."""

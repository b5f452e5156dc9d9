"""The pipeline: turns metric events into exact history. The only package that imports pyspark."""

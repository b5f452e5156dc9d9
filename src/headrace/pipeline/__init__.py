"""The home of pyspark: turns metric events into exact history."""

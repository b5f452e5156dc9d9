"""Benchmarks: programs that measure one promise each and end with one line of JSON. See docs/bench/README.md."""

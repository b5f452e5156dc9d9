"""Benchmarks: programs that each measure one guarantee and end with one line of JSON. See docs/bench/README.md."""

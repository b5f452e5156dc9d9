"""Programs for the repository itself: checks, comparison of benchmarks, the torture run of the tests."""

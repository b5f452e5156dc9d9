"""Programs for the repository: checks, benchmark comparison, torture runs of the tests."""

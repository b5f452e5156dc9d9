"""Runs the `headrace` command for `python -m headrace`."""

from headrace.cli.main import main

main()

"""Signed HTTP POSTs to external systems, limited to allowed addresses and to a total time."""

"""Jobs on plain Redis Streams, and the exact depth of consumer groups."""

"""Jobs on plain Redis Streams, and how deep such a stream truly is."""

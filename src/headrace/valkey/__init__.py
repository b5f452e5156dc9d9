"""Everything that uses redis-py: connections, error translation, the script loader. Other packages keep their own
`.lua` files."""

"""Integrations with other libraries. Each module needs one library, and imports it when it is imported itself; nothing
else in Headrace imports them, except that the command line uses `logs`."""

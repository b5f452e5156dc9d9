"""The home of redis-py: connections, the script loader, retry. The rooms above keep their own `.lua`."""

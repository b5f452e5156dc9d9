"""Embedded servers: Valkey, PostgreSQL and ClickHouse from Python wheels, started and stopped by Headrace.

Each server is a class with start, wait_ready, stop, url, data directory and log file. The servers listen on loopback or
a Unix socket only, require a password, and cannot outlive the process that started them. Other packages connect to
them by URL, as to any other server.
"""

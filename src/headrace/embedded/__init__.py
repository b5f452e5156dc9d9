"""Real servers from wheels, started and stopped by Headrace itself.

Each server is a small class with start, wait_ready, stop, url, data directory and log file. They
listen on loopback or a Unix socket only, ask for a password, and cannot outlive the process that started them.
Everything else in Headrace reaches them by URL, exactly as it would reach servers run elsewhere.
"""

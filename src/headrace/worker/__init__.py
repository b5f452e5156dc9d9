"""Executors that run tasks outside the event loop.

`ThreadExecutor` runs synchronous tasks in daemon threads. It starts a task's time limit when the task starts, so that a
job that waits for a thread loses nothing of it. This package imports `queue` and the packages below it.
"""

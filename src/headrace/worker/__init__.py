"""Executors that run tasks outside the event loop: in threads and in child processes.

`ThreadExecutor` runs synchronous tasks in daemon threads. `ProcessExecutor` runs tasks in child processes, which can be
ended. Both start a task's time limit when the task starts, so that a job that waits for a thread or a process loses
nothing of it. This package imports `queue` and the packages below it.
"""

"""Workers: lease jobs, run their tasks, report the results.

`core.py` is the worker. Its sources are shards of the queue (`queue_source.py`) or consumer groups of Redis Streams
(`stream_source.py`); `queue_worker.py` and `stream_worker.py` build it. Tasks run on the event loop, in threads
(`threads.py`) or in child processes (`processes.py`); a task's time limit starts when the task starts. This package
imports `queue`, `streams` and the packages below them.
"""

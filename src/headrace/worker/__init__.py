"""Workers: lease jobs, run their tasks, report the results.

`queue_worker.py` serves queues, `stream_worker.py` consumer groups of Redis Streams. Tasks run on the event loop, in
threads (`threads.py`) or in child processes (`processes.py`); a task's time limit starts when the task starts. This
package imports `queue`, `streams` and the packages below them.
"""

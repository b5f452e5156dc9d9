"""Job queues that `./hr bench peers` compares: for each, its tasks and how a producer sends jobs.

Each module runs in a process of its own, Headrace's in the environment of the repository, all others in that of the
peers (`bench/peer_environment.py`), so these modules import nothing of Headrace and the standard library only.
A module defines four tasks, named in `meter.py`, and the functions that `produce.py` calls.
"""

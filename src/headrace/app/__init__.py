"""The application API: `Headrace`, the object that an application declares its tasks on and enqueues jobs with.

An enqueue passes through task.py (arguments to payload), headrace.py (environment, middleware) and clients.py
(connections) to the queue. A job passes through the worker (headrace.worker) to execution.py, which decodes its
arguments, resolves its dependencies and calls the function.

The package imports the queue, the tiers and the worker. It does not connect before it is used.
"""

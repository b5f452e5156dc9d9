"""Export: sends the records of a spool to a destination, with retries, a circuit breaker and bounds.

`destination.py` is the protocol of a destination and its errors; `exporter.py` sends records to one, with its decisions
apart: `flow_control.py` (when to lease and send), `breaker.py`, `outcomes.py` (sends whose outcome is unknown),
`adaptive.py` (number of workers), `health.py`. `metrics.py` exposes all of it to Prometheus.
"""

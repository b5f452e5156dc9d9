"""What every long-running process shares: loops, leases, backoff, metrics, and the endpoints /metrics and /healthz.

Metrics are plain numbers, updated where something happens and read at a scrape. Only `http_server` and `prometheus`
import prometheus_client, and only processes that serve metrics import those: a worker without a port never loads it.
"""

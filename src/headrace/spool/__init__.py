"""The spool: a durable queue on disk for data to export, and the exporter that empties it. Records are delivered at
least once and in order, across crashes and power losses.

File layer, which takes no locks: `record.py` (encoding of one record), `segment.py` (append-only files of records),
`scan.py` (reading damaged segments), `journal.py` (notes about what happened to records), `inventory.py` (all segments
and journals of a directory), `recovery.py` (opening a directory after a crash).

Lock layer, which does not depend on file formats: `state.py` (the queue in memory), `memory.py` (records in memory),
`admission.py` (put), `writer.py` (memory to disk), `leasing.py` (lease, ack, nack, reject), `maintenance.py`
(background work), `spool.py` (the public class). `inspect.py` reads a directory without opening the spool.

Export: `destination.py` (the protocol of a destination and its errors) and `exporter.py` (sends records to one), with
its decisions apart: `flow_control.py` (when to lease and send), `breaker.py`, `outcomes.py` (sends whose outcome is
unknown), `adaptive.py` (number of workers), `health.py`. `failover.py` buffers records in memory while the disk fails;
`metrics.py` exposes all of it to Prometheus.

From the rest of Headrace, this package imports only `headrace.errors` and `headrace.runtime.backoff`.
"""

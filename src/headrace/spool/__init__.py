"""The spool: a durable queue on disk for data to export. Records are delivered at least once and in order, across
crashes and power losses. `headrace.export` empties it.

File layer, which takes no locks: `record.py` (encoding of one record), `segment.py` (append-only files of records),
`scan.py` (reading damaged segments), `journal.py` (notes about what happened to records), `inventory.py` (all segments
and journals of a directory), `recovery.py` (opening a directory after a crash).

Lock layer, which does not depend on file formats: `state.py` (the queue in memory), `memory.py` (records in memory),
`admission.py` (put), `writer.py` (memory to disk), `leasing.py` (lease, ack, nack, reject), `held.py` (records that
must follow earlier ones), `maintenance.py` (background work), `spool.py` (the public class). `inspect.py` reads a
directory without opening the spool. `failover.py` buffers records in memory while the disk fails; `metrics.py` exposes
all of it to Prometheus.

From the rest of Headrace, this package imports only `headrace.errors` and `headrace.runtime.metrics`.
"""

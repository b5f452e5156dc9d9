"""The spool: a durable export queue. What was put comes out at least once, in order, whatever dies in between.

Two layers. Below, files without locks: `record.py` (one record in bytes), `segment.py` (append-only files of records),
`scan.py` (reading them whatever happened), `journal.py` (what became of them), `recovery.py` (a directory as a crash
left it). Above, locks without formats: `state.py` (what there is, and who is next), `admission.py` (put), `writer.py`
(memory to disk), `leasing.py` (lease to end), `upkeep.py` (the rest), `spool.py` (the face of it).
`inspect.py` looks at a directory without taking part.

Beside it, what empties it: `destination.py` (what a destination is, and how it fails), `exporter.py` (carries records
there), with its decisions apart: `flow.py` (who may take and send), `breaker.py`, `backoff.py`, `fates.py` (what may
have been applied), `adaptive.py`, `health.py`. `failover.py` is memory for a disk that fails, `metrics.py` Prometheus'
view.

Imports only `headrace.errors` from the rest of the package.
"""

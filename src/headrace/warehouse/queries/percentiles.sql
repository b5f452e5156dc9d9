  -- The keys of the buckets that hold them, see model/histogram.py; without meaning where nothing was measured.
  arrayFirst((key, rank) -> rank >= ceil(waits * 0.5), wait_keys, wait_ranks) AS wait_p50,
  arrayFirst((key, rank) -> rank >= ceil(waits * 0.9), wait_keys, wait_ranks) AS wait_p90,
  arrayFirst((key, rank) -> rank >= ceil(waits * 0.95), wait_keys, wait_ranks) AS wait_p95,
  arrayFirst((key, rank) -> rank >= ceil(waits * 0.99), wait_keys, wait_ranks) AS wait_p99,
  arrayFirst((key, rank) -> rank >= ceil(runs * 0.5), run_keys, run_ranks) AS run_p50,
  arrayFirst((key, rank) -> rank >= ceil(runs * 0.9), run_keys, run_ranks) AS run_p90,
  arrayFirst((key, rank) -> rank >= ceil(runs * 0.95), run_keys, run_ranks) AS run_p95,
  arrayFirst((key, rank) -> rank >= ceil(runs * 0.99), run_keys, run_ranks) AS run_p99,

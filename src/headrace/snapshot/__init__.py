"""Queue metrics for Prometheus, computed ahead of the scrape: a refresher writes snapshots, a reader serves them."""

"""Queue metrics for Prometheus, made ahead of the scrape: a refresher writes, a collector reads."""

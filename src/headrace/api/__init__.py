"""HTTP API (FastAPI): history, live state and operations; serves the dashboard."""

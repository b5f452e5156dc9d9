"""The home of FastAPI: history and live state over HTTP, and the dashboard."""

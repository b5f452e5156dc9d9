"""Router that combines the routes for queues, jobs and environments."""

from __future__ import annotations

from fastapi import APIRouter

from headrace.api.routes import control, environments, jobs, live, v2
from headrace.api.routes import dead_jobs as dead
from headrace.api.routes import live_events as stream

router = APIRouter()
for group in (live, jobs, dead, control, environments, stream, v2):
    router.include_router(group.router)

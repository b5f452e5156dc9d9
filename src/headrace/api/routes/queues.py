"""Router that combines the routes for queues, jobs and environments."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from headrace.api.routes import control, environments, jobs, live, v2
from headrace.api.routes import dead_jobs as dead
from headrace.api.routes import live_events as stream


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    yield
    if hasattr(app.state, "operating"):
        app.state.operating.close()


router = APIRouter(lifespan=_lifespan)
for group in (live, jobs, dead, control, environments, stream, v2):
    router.include_router(group.router)

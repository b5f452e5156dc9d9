"""The web application of the shop."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from headrace.contrib.asgi import Scope, TenantMiddleware, lifespan
from headrace.errors import JobFailed, NoEnvironment

from tasks import Order, app, place_order

KEYS = {b"key-of-acme": "acme/shop/prod", b"key-of-globex": "globex/shop/prod"}


def find_tenant(scope: Scope) -> str | None:
    """Return the environment of a request by its API key; None: the key is missing or unknown."""
    return KEYS.get(dict(scope["headers"]).get(b"x-api-key", b""))


web = FastAPI(title="Shop", lifespan=lifespan(app))
web.add_middleware(TenantMiddleware, resolve=find_tenant)


@web.exception_handler(NoEnvironment)
async def refuse(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": "X-Api-Key is missing or unknown."}, 401)


@web.post("/orders", status_code=202)
async def post_order(order: Order) -> dict[str, Any]:
    job = await place_order.using(id=f"order-{order.number}").aenqueue(order)
    return {"job": job.id, "accepted": job.accepted}


@web.get("/orders/{number}")
async def get_order(number: int, response: Response, wait: float = 0) -> dict[str, Any]:
    job = app.handle(f"order-{number}", task=place_order)
    if wait:
        try:
            total: Decimal = await job.aresult(timeout=min(wait, 30))
        except JobFailed as error:
            return {"state": "dead", "error": str(error)}
        except TimeoutError:
            response.status_code = 202
        else:
            return {"state": "done", "total": str(total)}
    state = await job.astate()
    if state is None:
        raise HTTPException(404, f"Order {number} is unknown.")
    return {"state": state}

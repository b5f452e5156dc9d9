"""Views that enqueue, and the function that finds the tenant of a request."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.django.shop import tasks


def find_tenant(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tenant")


def enqueue(request: HttpRequest) -> HttpResponse:
    return HttpResponse(tasks.add.enqueue(1, 2).id)


async def aenqueue(request: HttpRequest) -> HttpResponse:
    return HttpResponse((await tasks.add.aenqueue(1, 2)).id)


urlpatterns = [path("enqueue", enqueue), path("aenqueue", aenqueue)]

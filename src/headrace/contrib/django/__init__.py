"""Headrace as the backend of Django's tasks (`django.tasks`, or the package `django_tasks` before Django 6).

    INSTALLED_APPS = [..., "headrace.contrib.django"]
    TASKS = {"default": {"BACKEND": "headrace.contrib.django.HeadraceBackend", "OPTIONS": {"env": "acme/shop/prod"}}}

The path of a job: `backend` enqueues it, `app` finds its task in a worker, `execution` runs it, `results` reads what
became of it. Names are imported on first use, because Django imports this package before its apps are ready.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.contrib.django.backend import HeadraceBackend
    from headrace.contrib.django.task import HeadraceTask, HeadraceTaskResult

__all__ = ["HeadraceBackend", "HeadraceTask", "HeadraceTaskResult"]

_MODULES = {
    "HeadraceBackend": "headrace.contrib.django.backend",
    "HeadraceTask": "headrace.contrib.django.task",
    "HeadraceTaskResult": "headrace.contrib.django.task",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)

"""Finds the backend that a worker serves.

`headrace worker headrace.contrib.django.worker:app` serves the settings that DJANGO_SETTINGS_MODULE names. Unlike
`manage.py headrace_worker` it can run several processes, serve metrics and restart itself.
"""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

import django
from headrace.contrib.django.app import DjangoHeadrace
from headrace.contrib.django.backend import HeadraceBackend
from headrace.contrib.django.compat import task_backends


def find_backend(alias: str | None = None) -> HeadraceBackend:
    """Import the module `tasks` of every installed app, and return the backend of an alias in TASKS; without an alias
    the only backend of Headrace, or that named `default`. Raises ImproperlyConfigured if there is none."""
    found = {name: each for name in task_backends if isinstance(each := task_backends[name], HeadraceBackend)}
    if not found:
        raise ImproperlyConfigured("TASKS has no backend headrace.contrib.django.HeadraceBackend in these settings.")
    if alias is None:
        alias = next(iter(found)) if len(found) == 1 else "default"
    if alias not in found:
        raise ImproperlyConfigured(f"{alias!r} is no backend of Headrace in TASKS. Use one of: {', '.join(found)}.")
    autodiscover_modules("tasks")
    return found[alias]


def __getattr__(name: str) -> DjangoHeadrace:
    """Return the app of the only backend of Headrace, or of that named `default`, as `app`."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not apps.ready:
        django.setup()
    return find_backend().app

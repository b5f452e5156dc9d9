"""Settings of the project. Worker processes get the address of Valkey from the environment."""

from __future__ import annotations

import os
from typing import Any

from headrace.contrib.django import compat

ENV = "acme/shop/prod"
BACKEND = "headrace.contrib.django.HeadraceBackend"


def make_tasks(url: str | None, **options: Any) -> dict[str, Any]:
    """Return the setting TASKS: a backend on Valkey, and another one for other queues on the same server."""
    common = {"url": url, "env": ENV, **options}
    return {
        "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": common},
        "other": {"BACKEND": BACKEND, "QUEUES": ["other"], "OPTIONS": {"url": url, "env": ENV}},
        "unkept": {"BACKEND": BACKEND, "OPTIONS": {"url": url, "env": ENV, "result_ttl": None}},
        "dummy": {"BACKEND": f"{compat.BaseTaskBackend.__module__.rpartition('.')[0]}.dummy.DummyBackend"},
    }


SECRET_KEY = "for tests"
USE_TZ = True
TIME_ZONE = "UTC"
LOGGING_CONFIG = None  # pytest configures logging
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.django.shop.urls"
MIDDLEWARE = ["headrace.contrib.django.middleware.tenant_middleware"]
TASKS_TENANT = "tests.django.shop.urls.find_tenant"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["headrace.contrib.django", "tests.django.shop"]
if not compat.Task.__module__.startswith("django.tasks"):
    INSTALLED_APPS.append("django_tasks")
TASKS = make_tasks(os.environ.get("TEST_VALKEY_URL"))

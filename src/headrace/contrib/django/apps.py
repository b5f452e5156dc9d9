"""The Django app, which provides the command `headrace_worker`."""

from __future__ import annotations

from django.apps import AppConfig


class HeadraceConfig(AppConfig):
    name = "headrace.contrib.django"
    label = "headrace"
    verbose_name = "Headrace"

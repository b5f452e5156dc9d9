"""Headrace in Flask applications: jobs run in the context of the application.

The environment of requests is set by `headrace.contrib.wsgi.WsgiTenantMiddleware`.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.app.context import RunningJob
from headrace.app.headrace import Headrace
from headrace.app.middleware import Middleware
from headrace.contrib.extras import make_missing_extra

try:
    from flask import Flask
except ModuleNotFoundError as error:
    raise make_missing_extra(error, "flask") from error


class FlaskContext(Middleware):
    """Runs functions that are not async in the context of a Flask application, in which `current_app` and extensions
    like databases work. It ends after each job."""

    def __init__(self, flask_app: Flask) -> None:
        self._flask_app = flask_app

    def calling(self, job: RunningJob, call_next: Callable[[], object]) -> object:
        with self._flask_app.app_context():
            return call_next()


def init_app(queue: Headrace, flask_app: Flask) -> None:
    """Run the jobs of a queue in the context of a Flask application, inside its other middleware. A later call replaces
    the application. Connections of the queue are not opened or closed with requests: threads share them."""
    others = [each for each in queue.middleware if not isinstance(each, FlaskContext)]
    queue.middleware = (*others, FlaskContext(flask_app))
    flask_app.extensions["headrace"] = queue

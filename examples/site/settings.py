"""Settings of the site."""

from pathlib import Path

import django

BASE_DIR = Path(__file__).parent
SECRET_KEY = "change-me"
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "site.sqlite3"}}
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

INSTALLED_APPS = ["headrace.contrib.django", "newsletter"]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")

TASKS = {
    "default": {
        "BACKEND": "headrace.contrib.django.HeadraceBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"env": "acme/site/prod", "on_commit": "default"},
    }
}

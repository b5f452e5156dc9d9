"""Tasks of the newsletter. The worker finds this module by its name."""

from __future__ import annotations

from django.core.mail import send_mail
from django.utils import timezone

from newsletter.models import Subscriber

try:
    from django.tasks import task  # Django 6
except ImportError:
    from django_tasks import task  # the same for earlier versions


@task(queue_name="mail")
def send_welcome(subscriber_id: int) -> str:
    """Send the welcome message, once: a task can run more than once. Return the address."""
    subscriber = Subscriber.objects.get(pk=subscriber_id)
    if subscriber.welcomed_at is None:
        send_mail("Welcome", "Thank you for subscribing.", "news@example.com", [subscriber.email])
        subscriber.welcomed_at = timezone.now()
        subscriber.save(update_fields=["welcomed_at"])
    return subscriber.email

"""Tests of the newsletter. Tasks run when they are enqueued; no servers are needed."""

from __future__ import annotations

import django
from django.core import mail
from django.test import TestCase, override_settings

from newsletter.models import Subscriber
from newsletter.tasks import send_welcome

PACKAGE = "django_tasks" if django.VERSION < (6, 0) else "django.tasks"
IMMEDIATE = {"default": {"BACKEND": f"{PACKAGE}.backends.immediate.ImmediateBackend", "QUEUES": []}}


@override_settings(TASKS=IMMEDIATE)
class NewsletterTests(TestCase):
    def test_a_subscriber_is_welcomed(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            response = self.client.post("/subscribe", {"email": "ann@example.com"})
        self.assertEqual(response.status_code, 202)
        self.assertEqual([message.to for message in mail.outbox], [["ann@example.com"]])
        self.assertIsNotNone(Subscriber.objects.get().welcomed_at)

    def test_a_second_run_sends_nothing(self) -> None:
        subscriber = Subscriber.objects.create(email="ann@example.com")
        for _ in range(2):
            self.assertEqual(send_welcome.call(subscriber.pk), "ann@example.com")
        self.assertEqual(len(mail.outbox), 1)

    def test_an_invalid_address_is_refused(self) -> None:
        response = self.client.post("/subscribe", {"email": "ann"})
        self.assertEqual(response.status_code, 400)
        self.assertFalse(Subscriber.objects.exists())

"""Subscribers of the newsletter."""

from django.db import models


class Subscriber(models.Model):
    email = models.EmailField(unique=True)
    welcomed_at = models.DateTimeField(null=True, blank=True)

"""Signed messages: the receiver can verify the sender, the time, and whether a message is a repetition."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from headrace.webhook.guard import AddressPolicy
from headrace.webhook.post import post


def compute_signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the HMAC-SHA256 signature over `timestamp.body`; the timestamp prevents replay of an old message."""
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"sha256={digest.hexdigest()}"


def post_signed(
    url: str, secret: str, delivery: str, document: Mapping[str, Any], *, timeout_s: float, policy: AddressPolicy
) -> None:
    """Post a signed JSON document. `delivery` identifies the message and is the same at every attempt. Raises
    DeliveryFailed or AddressRefused."""
    body = json.dumps(document).encode()
    timestamp = str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "X-Headrace-Delivery": delivery,
        "X-Headrace-Timestamp": timestamp,
        "X-Headrace-Signature": compute_signature(secret, timestamp, body),
    }
    post(url, body, headers, timeout_s=timeout_s, policy=policy)

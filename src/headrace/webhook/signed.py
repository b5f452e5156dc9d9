"""A message that its receiver can check: who sent it, when, and whether it came before."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from headrace.webhook.guard import AddressPolicy
from headrace.webhook.post import post


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Over `timestamp.body`, so that an old message cannot be sent again as a new one."""
    made = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"sha256={made.hexdigest()}"


def post_signed(
    url: str, secret: str, delivery: str, document: Mapping[str, Any], *, timeout_s: float, policy: AddressPolicy
) -> None:
    """`delivery` is the same at every try. Raises NotTaken, AddressRefused."""
    body = json.dumps(document).encode()
    timestamp = str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "X-Headrace-Delivery": delivery,
        "X-Headrace-Timestamp": timestamp,
        "X-Headrace-Signature": signature(secret, timestamp, body),
    }
    post(url, body, headers, timeout_s=timeout_s, policy=policy)

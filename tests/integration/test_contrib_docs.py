"""The examples of the pages about integrations run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"

CHECKS = {
    "opentelemetry": """
        shop.welcome.enqueue("ann")
        run_all(shop.app)
        shop.provider.shutdown()
    """,
    "sentry": """
        import sentry_sdk

        class Printed(sentry_sdk.transport.Transport):
            def capture_envelope(self, envelope):
                for item in envelope.items:
                    print(item.type, item.payload.json["contexts"]["job"]["attempt"])

        sentry_sdk.get_client().transport = Printed()
        shop.welcome.using(max_attempts=1).enqueue("ann")
        run_all(shop.app)
    """,
    "logs": """
        shop.welcome.enqueue("ann")
        shop.handle_request()
        run_all(shop.app)
    """,
    "web-frameworks": """
        from fastapi.testclient import TestClient

        headers = {"Authorization": "secret-of-acme"}
        with TestClient(shop.web, headers=headers) as client:
            for path in ("/welcome?to=ann", "/welcome-in-thread?to=ann"):
                client.post(path).raise_for_status()
        assert shop.flask_app.test_client().post("/report", headers=headers).status_code == 200
        run_all(shop.queue)
    """,
}
OUTPUT = {
    "opentelemetry": ['"name": "send emails"', '"name": "process emails"', '"name": "rendered"'],
    "sentry": ["event 1", "transaction 1"],
    "logs": ["INFO sent a mail to ann job=", "task=welcome org=acme", '"request_id": "r-17"', '"task": "remind"'],
    "web-frameworks": ["report of shop"],
}
START = """
import asyncio
import shop

def run_all(app):
    asyncio.run(app.worker().run_until_idle())

"""


@pytest.mark.parametrize("page", CHECKS)
def test_the_examples_of_a_page_run(page: str, valkey_url: str, tmp_path: Path) -> None:
    text = (PAGES / f"{page}.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text("\n\n".join(blocks))
    lines = [line.removeprefix(" " * 8) for line in CHECKS[page].splitlines()]
    (tmp_path / "check.py").write_text(START + "\n".join(lines))
    environment = os.environ | {
        "HEADRACE_REDIS_URL": valkey_url,
        "SENTRY_DSN": "http://key@127.0.0.1:9/1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "check.py"]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert [each for each in OUTPUT[page] if each not in output] == [], output

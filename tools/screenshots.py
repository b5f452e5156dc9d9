"""Takes the pictures of the documentation from a running demo: `./hr up --demo`, some minutes later this.

Without arguments all of them, else those that are named: `tools/screenshots.py alerts queue`. Options of `headrace`, as
`--set=embedded.data_dir=…`, find a stack elsewhere. A consumer of the demo's stream is stuck after five minutes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"

ACME = "org=acme&project=shop&env=prod"
INITECH = "org=initech&project=billing&env=prod"
BROWSER_JOBS = quote(json.dumps(["default", "default", "streams", "browser:jobs/workers"], separators=(",", ":")))

PICTURES: dict[str, tuple[str, str]] = {
    "dashboard": (f"?{ACME}&range=5m", "[data-testid=chart-depth][data-points]:not([data-points='0'])"),
    "queues": (f"queue-metrics?{ACME}&group=class", "[data-testid=queues] tbody tr"),
    "queue": (f"queues/invoices?{INITECH}&range=5m", "[data-testid=chart-wait][data-points]:not([data-points='0'])"),
    "dead": (f"dead?{INITECH}", "[data-testid=letter]"),
    "alerts": (f"alerts?{ACME}", "[data-testid=open-incidents] [data-testid=incident]"),
    "autoscaler": ("autoscaler?type=mail", "[data-testid=steps]"),
    "streams": (f"streams?open={BROWSER_JOBS}", "[data-testid=consumers]"),
}
"""Address of each page, and the element that must be visible before the picture."""

LIVE = "[data-testid=updated][data-condition=live]"
TRIES = 5

# Paths of the machine that takes the screenshots must not appear in them.
SHORTEN_PATHS = """
() => {
  const text = document.querySelector("[data-testid=traceback]").firstChild;
  text.data = text.data.replaceAll(/File "[^"]*\\/(headrace|site-packages|lib)\\//g, 'File "…/$1/');
}
"""


def main() -> None:
    options = [each for each in sys.argv[1:] if each.startswith("--")]
    named = [each for each in sys.argv[1:] if each not in options]
    named = named or list(PICTURES)
    link = sign_in_link(options)
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 860}, color_scheme="light")
        page.goto(link)
        url = link.partition("login/")[0]
        for name in named:
            path, ready = PICTURES[name]
            take(page, f"{url}{path}", ready, IMAGES / f"{name}.png")
        if "dashboard" in named:
            page.emulate_media(color_scheme="dark")
            take(page, url + PICTURES["dashboard"][0], PICTURES["dashboard"][1], IMAGES / "dashboard-dark.png")
        browser.close()


def sign_in_link(options: list[str]) -> str:
    """Return a sign-in link, as the command prints it."""
    command = [sys.executable, "-m", "headrace", *options, "keys", "link", "--json"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(
            f"{made.stderr}No stack runs here? Start one with ./hr up --demo, and try again in some minutes."
        )
    answer: dict[str, Any] = json.loads(made.stdout)
    return str(answer["link"])


def take(page: Page, url: str, ready: str, picture: Path) -> None:
    page.goto(url)
    page.wait_for_selector(ready)
    page.wait_for_timeout(3000)  # wait for the axes
    if (letter := page.locator("[data-testid=letter]")).count():
        letter.first.click()
        page.wait_for_selector("[data-testid=payload]")
        page.evaluate(SHORTEN_PATHS)
    for _ in range(TRIES):  # on a busy machine the page may show stale data
        page.wait_for_selector(LIVE)
        page.screenshot(path=picture, full_page="chart-depth" in ready)
        if page.locator(LIVE).count():
            break


if __name__ == "__main__":
    main()

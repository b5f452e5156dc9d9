"""Takes the pictures of the documentation from a running demo: `./hr up --demo`, then this."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from headrace.embedded.datadir import running_stack

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
QUEUE = "?org=globex&project=media&env=prod&queue=thumbnails&range=5m"


def main() -> None:
    stack = running_stack(Path(".headrace"))
    if stack is None:
        raise SystemExit("No stack runs here. Start one with ./hr up --demo, wait some minutes, and try again.")
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 860}, color_scheme="light")
        page.goto(stack["urls"]["dashboard"] + QUEUE)
        page.wait_for_selector("[data-testid=chart-depth][data-points]")
        page.wait_for_timeout(2000)  # let the axes settle
        page.screenshot(path=IMAGES / "dashboard.png")
        browser.close()


if __name__ == "__main__":
    main()

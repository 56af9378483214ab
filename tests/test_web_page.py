"""llama-server's own web page over our drafting, in a headless Chromium; skipped where one of them is missing."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dflash_cpp import DFlashError, server

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCREENSHOT = os.environ.get("DFLASH_SCREENSHOT")


@pytest.mark.timeout(180)
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium")
def test_the_page_sends_a_message_and_shows_the_answer(smollm2: Path) -> None:
    try:
        words = server.command("smollm2", arguments=["-np", "1", "--temp", "0", "--spec-parallel-width", "5"])
    except DFlashError as missing:
        pytest.skip(str(missing))
    with server.running(words) as running:
        page_request = urllib.request.Request(running.url, headers={"Accept-Encoding": "gzip"})
        try:
            urllib.request.urlopen(page_request).close()
        except urllib.error.HTTPError:
            pytest.skip("this llama-server has no web page: -C cmake.define.DFLASH_SERVER_UI=ON")
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1100, "height": 760})
            page.goto(running.url)
            box = page.get_by_role("textbox").first
            box.fill("Write a Python function that reverses a string.")
            box.press("Enter")
            page.get_by_text("This function uses slicing").first.wait_for(timeout=60_000)
            page.get_by_text(" t/s").first.wait_for(timeout=60_000)
            page.get_by_role("button", name="Stop", exact=True).wait_for(state="detached", timeout=60_000)
            if SCREENSHOT:
                page.screenshot(path=SCREENSHOT)
            browser.close()

"""Tests of the observer's page in a real Chromium: rendering, live updates, keys, and two colour
schemes.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from aftermath.rules.state import RunState
from ui.web.observer_client import observing
from ui.web.scripted_members import ScriptedMembers, scripted_members

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
EVIL = "<b>x</b><script>document.title=1</script><img src=/x>"
PATIENCE = 120
"""Seconds: a deadline for broken code, not an expectation."""


class Browser:
    """A page that another thread drives, so that network and observer keep running."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    async def open(self, url: str) -> None:
        await asyncio.to_thread(self.driver.get, url)

    async def ask(self, script: str) -> Any:
        return await asyncio.to_thread(self.driver.execute_script, f"return {script}")

    async def until(self, script: str) -> None:
        """Wait until this is true."""
        wait = WebDriverWait(self.driver, PATIENCE, poll_frequency=0.1)
        await asyncio.to_thread(
            wait.until, lambda driver: driver.execute_script(f"return {script}"), script
        )

    async def press(self, *keys: str) -> None:
        await asyncio.to_thread(lambda: self.driver.switch_to.active_element.send_keys(*keys))

    async def look(self, scheme: str, width: int) -> None:
        """A viewer's colour scheme and window size."""
        colours = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        window = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        await asyncio.to_thread(self.driver.execute_cdp_cmd, "Emulation.setEmulatedMedia", colours)
        await asyncio.to_thread(
            self.driver.execute_cdp_cmd, "Emulation.setDeviceMetricsOverride", window
        )

    def complaints(self) -> list[Any]:
        entries: list[Any] = self.driver.get_log("browser")
        return entries


def chromium(profile: Path) -> Options:
    """Return a function that starts a browser. Skip the test if there is none."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip(
            "no chromium and chromedriver on this machine (apt-get install chromium chromium-driver)"
        )
    options = Options()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    return options


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    options = chromium(tmp_path / "profile")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def text(selector: str) -> str:
    return f"(document.querySelector({selector!r})?.textContent ?? '')"


async def check_page(scripted: ScriptedMembers, browser: Browser, url: str) -> None:
    """Go from the list to the run's page, which shows strangers' text as plain text."""
    await browser.open(url)
    await browser.until("document.querySelectorAll('.runs li').length === 1")
    assert EVIL in await browser.ask(text(".runs strong"))
    await asyncio.to_thread(lambda: browser.driver.find_element(By.CSS_SELECTOR, ".runs a").click())
    await browser.until("document.querySelector('.machine .here')?.textContent === 'waiting'")
    assert await browser.ask(text("h1")) == EVIL
    assert (
        await browser.ask(
            "document.querySelectorAll('h1 *, .description *, main script, main img').length"
        )
        == 0
    )
    assert await browser.ask("document.title") == f"{EVIL} · aftermath"


async def test_observer_page_works_in_browser(browser: Browser) -> None:
    rules = {"init_min_clients": 3, "rounds_per_epoch": 6}
    async with (
        scripted_members("shown", (0, 1, 2), name=EVIL, **rules) as scripted,
        observing(
            scripted.funded.network.rpc_url, scripted.funded.network.ws_url, run_id="shown"
        ) as viewer,
    ):
        await browser.look("light", 1280)
        await check_page(scripted, browser, f"{viewer.url}/")

        # Live updates: members join and rounds pass without a reload of the page.
        await scripted.join()
        await scripted.reach(RunState.ROUND_TRAIN, height=4)
        await browser.until("document.querySelectorAll('.members tbody tr').length === 3")
        await browser.until("document.querySelectorAll('.chart .line').length === 3")
        await browser.until(
            "/training|witnessing/.test(document.querySelector('.machine .here').textContent)"
        )
        await browser.until("document.querySelectorAll('.chip').length === 6")
        assert await browser.ask(text("#link")) == "live"

        # Keys: the first tab stop skips to the content, the legend switches a tier, the chart names
        # a step.
        await browser.ask("document.activeElement.blur()")
        await browser.press(Keys.TAB)
        assert await browser.ask("document.activeElement.className") == "skip"
        stops = []
        while len(stops) < 20 and (not stops or stops[-1] != "time"):
            await browser.press(Keys.TAB)
            stops.append(
                await browser.ask(
                    "document.activeElement.id || document.activeElement.dataset.tier || ''"
                )
            )
            focus = "getComputedStyle(document.activeElement).outlineStyle"
            assert await browser.ask(focus) == "solid", stops
            if stops[-1] == "1":
                await browser.press(Keys.SPACE)
                await browser.until("document.querySelectorAll('.chart .line').length === 2")
                assert (
                    await browser.ask("document.activeElement.getAttribute('aria-pressed')")
                    == "false"
                )
            if await browser.ask("document.activeElement.classList.contains('chart')"):
                await browser.press(Keys.HOME)
                await browser.until(
                    "/^step 1, tier 0/.test(document.querySelector('.spoken').textContent)"
                )
        assert stops[-1] == "time"
        assert {"0", "1", "2"} <= set(stops)

        # The slider goes back with the arrow keys, and its button returns to the present.
        await browser.press(Keys.HOME)
        await browser.until("document.querySelector('.machine .here').textContent === 'waiting'")
        await browser.until("document.querySelector('#link').dataset.kind === 'past'")
        assert await browser.ask("document.querySelectorAll('.chart .line').length") == 0
        await browser.press(Keys.ARROW_RIGHT)
        await browser.until("document.querySelector('#time').value === '1'")
        await browser.press(Keys.TAB, Keys.ENTER)
        await browser.until("document.querySelector('#link').dataset.kind === 'live'")

        # Numbers of any length fit next to the lines.
        await browser.look("light", 1280)
        drawn = """import("/chart.js").then(({ chart }) => {
            const shown = (value) => `${value.toFixed(1)} MB`;
            const { element, draw } = chart("wide", { shown, zero: true, nothing: "" });
            document.querySelector("main").append(element);
            draw({ lines: { 0: [[1, 0], [2, 12345]] } });
            const edges = [...element.querySelectorAll(".tick.end")].map((text) => text.getBBox().x);
            element.remove();
            return edges;
        })"""
        edges = await browser.ask(drawn)
        assert edges
        assert min(edges) >= 0

        # Light and dark, and the width of a phone.
        colours = []
        for scheme in ("light", "dark"):
            await browser.look(scheme, 390)
            colours.append(await browser.ask("getComputedStyle(document.body).backgroundColor"))
            assert await browser.ask("document.documentElement.scrollWidth") <= 390
        assert len(set(colours)) == 2
        assert browser.complaints() == []

"""Redraw docs/assets/screen.svg and the observer's pictures from a run of three members.

It starts the demo's run on this machine and takes the pictures at step STEP. It needs chromium and
chromedriver: apt-get install chromium chromium-driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.events.reader import EventReader
from aftermath.localnet.free_ports import free_ports
from aftermath.testnet.plan import RUN_ID
from aftermath.ui.run_follower import RunFollower
from aftermath.ui.terminal.board import Board
from aftermath.ui.terminal.messages import EventMessage, StatusMessage
from aftermath.ui.terminal.run_app import RunApp

ASSETS = Path(__file__).resolve().parents[1] / "docs/assets"
STEP = 32  # of 48: the second of two epochs
TIER = 1  # of the member whose screen is drawn
# As high as the page of three members, so that the bar at the bottom covers nothing.
WINDOW = {"width": 1100, "height": 1455, "deviceScaleFactor": 1, "mobile": False}
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
LOOK_BACK = """const time = document.querySelector("#time"); time.value = Math.round(0.6 * time.max);
time.dispatchEvent(new Event("input"));"""
TESTNET = "local-testnet start --headless --config-path demo --num-clients 3 --client-matformer-tiers 0,1,2"


@contextlib.contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends."""
    process = subprocess.Popen([sys.executable, "-m", "aftermath", *words], stdout=sys.stderr)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def await_step(observer: str) -> None:
    """Wait until the observer has seen step STEP. Raises TimeoutError."""
    for _ in range(4500):  # 15 minutes
        # the run or the observer may not exist yet
        with contextlib.suppress(OSError, KeyError, TypeError):
            moment = json.load(urlopen(f"{observer}/api/runs/{RUN_ID}"))["now"]["moment"]
            if moment["step"] >= STEP and moment["state"] == "round_train":
                return
        time.sleep(0.2)
    raise TimeoutError(f"the run did not reach step {STEP}")


def take_pictures(page: str, profile: Path) -> None:
    """Take the observer's picture as it is now, and in dark colours at an earlier time."""
    options = ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    with Chrome(options=options, service=ChromeService(shutil.which("chromedriver"))) as browser:
        for scheme in ("light", "dark"):
            colours = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", colours)
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WINDOW)
            browser.get(page)
            time.sleep(2)  # the first messages of the websocket
            if scheme == "dark":
                browser.execute_script(LOOK_BACK)
                time.sleep(2)
            browser.save_screenshot(str(ASSETS / f"observer-{scheme}.png"))


async def draw_screen(events: Path, rpc: str) -> None:
    """Draw the screen of the member that wrote these events, and the run as it is now."""
    async with RpcPool([endpoint(rpc)]) as pool:
        status = await RunFollower(CoordinatorClient(pool), RUN_ID).now()
    board = Board("member", RUN_ID, TIER)
    told = [record.event for record in EventReader([events]).read()]
    for message in (*map(EventMessage, told), StatusMessage(status)):
        board.take(message)
    app = RunApp(board, lambda: told[-1].t, lambda: None)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(1)
        (ASSETS / "screen.svg").write_text(app.export_screenshot(title="aftermath"))


def main() -> None:
    """Run the demo and draw the three pictures."""
    port = free_ports("127.0.0.1", 3)  # of the chain, its websocket and the observer
    rpc = f"http://127.0.0.1:{port}"
    observer = f"http://127.0.0.1:{port + 2}"
    with tempfile.TemporaryDirectory() as scratch:
        events = Path(scratch) / "testnet/events"
        testnet = f"{TESTNET} --dir {events.parent} --server-port {port}"
        with running(*testnet.split()) as process:
            while process.poll() is None and not events.exists():
                time.sleep(0.5)
            if process.poll() is not None:
                sys.exit("the run ended before it began to train")
            with running("observe", "--rpc", rpc, "--events", str(events), "--port", str(port + 2)):
                await_step(observer)
                asyncio.run(draw_screen(events / f"client-{TIER + 1}", rpc))
                take_pictures(f"{observer}/run/{RUN_ID}", Path(scratch) / "profile")


if __name__ == "__main__":
    main()

"""Messages of a local testnet for tests: empty, in the middle of a run, and with a killed
client.
"""

from __future__ import annotations

from typing import Any

import msgspec

from aftermath.ui.terminal.messages import MESSAGES, ClientRow, Clients, Line, Output, ReportMessage
from aftermath.ui.terminal.testnet_app import LocalTestnetApp, LocalTestnetBoard

NAMES = ("localnet", "client-1", "client-2", "client-3")
NOW = 75.0


def rows(state: str = "epoch 0 round 11: training") -> tuple[ClientRow, ...]:
    return tuple(
        ClientRow(name, tier, state, 3.5 - tier / 8, 0, 0, 4000 + tier)
        for tier, name in enumerate(NAMES[1:])
    )


def stands(*clients: ClientRow, **overrides: Any) -> Clients:
    values: dict[str, Any] = {
        "config": "config/demo/config.toml",
        "state": "epoch 0 round 11: training",
        "progress": "step 11 of 60, 2 min left",
        "step": 11,
        "total": 60,
    }
    return Clients(clients=clients or rows(), **values | overrides)


def busy() -> list[MESSAGES]:
    messages: list[MESSAGES] = [Line(1.0, "made runs/demo/model")]
    messages += [
        Output(
            "localnet", ("local network ready rpc=http://127.0.0.1:20000 ws=ws://127.0.0.1:20001",)
        )
    ]
    messages += [Line(9.0, "started 3 clients; what they say is in runs/local-testnet/logs")]
    for step in range(1, 12):
        for name in NAMES[1:]:
            text = f"step {step}  loss {4 - step / 20:.4f}"
            messages += [
                ReportMessage(20.0 + 4 * step, name, text),
                Output(name, (f"{step:9.2f}s  {text}",)),
            ]
    return [*messages, stands()]


def killed() -> list[MESSAGES]:
    gone = msgspec.structs.replace(
        rows()[2], state="killed, comes back", killed=2, back=1, pid=None
    )
    messages = busy()
    messages += [
        Line(66.0, "client-3 was killed (kill -9)"),
        Line(69.5, "client-3 is started again"),
    ]
    messages += [
        Line(74.0, "client-3 was killed (kill -9)"),
        Output("client-3", ("\x1b[2JTraceback: \u202ekilled",)),
    ]
    return [*messages, stands(*rows()[:2], gone)]


def overview_of(
    messages: list[MESSAGES], names: tuple[str, ...] = NAMES, leave: Any = lambda: None
) -> LocalTestnetApp:
    """Return a screen that shows these messages at a fixed time."""
    board = LocalTestnetBoard("local-testnet", names)
    for message in messages:
        board.take(message)
    screen = LocalTestnetApp(board, lambda: NOW, leave)
    screen.animation_level = "none"  # the line under the tabs would move for 0.3 seconds
    return screen

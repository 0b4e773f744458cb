"""Tests of the cluster options, for `train` and for all other commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from solders.keypair import Keypair
from websockets import InvalidURI

from aftermath.base.errors import UsageError
from aftermath.chain.endpoints import describe, shown
from aftermath.chain.options import ClusterChoice, coordinator_id, open_pool, public_key
from aftermath.chain.wallet import WalletError, create_wallet
from aftermath.cli.options import ClusterOptions
from aftermath.train.settings import TrainSettings

KEY = str(Keypair().pubkey())


def choices(**options: str) -> list[ClusterChoice]:
    """Return the options as `train` has them, and as other commands have them."""
    return [TrainSettings(run_id="r", **options), ClusterOptions(**options)]


@pytest.mark.parametrize("number", [2, 3])
def test_websocket_without_its_node_names_both_options(number: int) -> None:
    for choice in choices(**{f"ws_rpc_{number}": "ws://127.0.0.1:1"}):
        with pytest.raises(UsageError, match=f"--ws-rpc-{number} needs --rpc-{number}"):
            open_pool(choice, patience=1)


def test_up_to_three_nodes_are_used_in_order() -> None:
    options = {
        "rpc": "http://one:1",
        "ws_rpc": "ws://one:7",
        "rpc_2": "http://two:1",
        "rpc_3": "http://three:1",
    }
    for choice in choices(**options):
        pool = open_pool(choice, patience=3)
        assert [(e.http, e.ws) for e in pool.endpoints] == [
            ("http://one:1", "ws://one:7"),
            ("http://two:1", "ws://two:2"),
            ("http://three:1", "ws://three:2"),
        ]
        assert pool.patience == 3


def test_node_at_last_port_needs_websocket_option() -> None:
    for choice in choices(rpc="http://one:65535"):
        with pytest.raises(UsageError, match="uses the last port") as refused:
            open_pool(choice, patience=1)
        assert (
            refused.value.fix == "Pass the websocket's address; see --ws-rpc (the variable WS_RPC)"
        )
    for choice in choices(rpc_2="http://two:65535"):
        with pytest.raises(UsageError, match="--ws-rpc-2"):
            open_pool(choice, patience=1)
    for choice in choices(rpc="http://one:65535", ws_rpc="ws://one:65534"):
        assert open_pool(choice, patience=1).endpoints[0].ws == "ws://one:65534"


SHOWN = {
    "https://me:SECRET@host.example:8899/v2/SECRET?api-key=SECRET#SECRET": "https://host.example:8899",
    "wss://[::1]:8900/SECRET": "wss://[::1]:8900",
    "htps://me:SECRET@host.example/": "htps://host.example",
    "https:/host.example/SECRET": "https:/host.example",
    "me:SECRET@host.example/": "host.example",
    "host.example?api-key=SECRET": "host.example",
    "https://me:SEC/RET@host.example": "https://…",
    "https://me:SECRET": "https://me…",
    "https://host.example&api-key=SECRET": "https://host.example…",
    "https://host.example:8899:SECRET": "https://host.example:8899…",
    "devnett": "devnett",
}


@pytest.mark.parametrize("address", SHOWN)
def test_shown_address_has_no_user_password_or_key(address: str) -> None:
    assert shown(address) == SHOWN[address]


def test_mistyped_rpc_address_is_refused_without_secrets() -> None:
    for option in ("rpc", "ws_rpc", "rpc_2"):
        for choice in choices(**{option: "htps://me:SECRET@host.example/SECRET?api-key=SECRET"}):
            with pytest.raises(
                UsageError, match=r"htps://host\.example.* is not an RPC address"
            ) as refused:
                open_pool(choice, patience=1)
            assert "SECRET" not in str(refused.value)


def test_described_error_hides_secrets_of_address() -> None:
    text = describe(InvalidURI("wss://me:SECRET@host.example/?api-key=SECRET", "bad"))
    assert "SECRET" not in text
    assert "wss://host.example" in text


def test_coordinator_is_named_by_its_key() -> None:
    for choice in choices(coordinator_program_id=KEY):
        assert str(coordinator_id(choice)) == KEY
    for choice in choices():
        assert coordinator_id(choice) is None
    for choice in choices(coordinator_program_id="nonsense"):
        with pytest.raises(
            UsageError, match="'nonsense' is not a public key\n--coordinator-program-id takes"
        ):
            coordinator_id(choice)


def test_key_is_given_directly_or_by_file(tmp_path: Path) -> None:
    wallet = create_wallet(tmp_path / "key.json")
    assert str(public_key(KEY)) == KEY
    assert public_key(str(tmp_path / "key.json")) == wallet.pubkey
    for nothing in ("", "nonsense"):
        with pytest.raises(UsageError):
            public_key(nothing)
    with pytest.raises(WalletError, match="there is no key file"):
        public_key(str(tmp_path / "missing.json"))

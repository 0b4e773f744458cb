"""Test the port and interface at which an endpoint listens, and the addresses that it publishes."""

import socket
from pathlib import Path

import pytest

from aftermath.p2p.iroh import open_iroh, whereabouts
from p2p.nodes import join, secret, until


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("0.0.0.0", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "fixed", "interface"),
    [(None, True, "0.0.0.0"), ("127.0.0.1", True, "127.0.0.1"), ("127.0.0.1", False, "127.0.0.1")],
)
async def test_endpoint_listens_at_given_address(
    tmp_path: Path, host: str | None, fixed: bool, interface: str
) -> None:
    port = free_port() if fixed else 0
    node = await open_iroh(
        secret(1),
        bind_host=host,
        bind_port=port,
        relay="disabled",
        discovery="local",
        discovery_dir=tmp_path / "run",
    )
    try:
        # no option selects IPv6
        (bound,) = [one for one in node._endpoint.bound_sockets() if not one.startswith("[")]
        address, _, actual = bound.rpartition(":")
        assert address == interface
        assert int(actual) == port if fixed else int(actual) > 0
        assert f"127.0.0.1:{actual}" in whereabouts(node._endpoint).addresses
    finally:
        await node.close()


async def test_fixed_port_without_host_is_reachable_locally(tmp_path: Path) -> None:
    places = {"relay": "disabled", "discovery": "local", "discovery_dir": tmp_path / "run"}
    nodes = [await open_iroh(secret(seed), bind_port=free_port(), **places) for seed in (1, 2)]  # type: ignore[arg-type]
    try:
        join(nodes)
        await until(lambda: all(node.reachable() for node in nodes))
    finally:
        for node in nodes:
            await node.close()

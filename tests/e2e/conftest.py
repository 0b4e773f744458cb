"""Fixtures: networks of both engines, a run of three members, and their processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import py
import pytest
from xprocess import XProcess

from aftermath.localnet import validator_binary
from e2e.cluster import TrainingCluster
from e2e.fork_server import close_fork_server
from e2e.network import Network
from e2e.processes import PATIENCE
from e2e.run_inputs import RunInputs, make_run_inputs
from e2e.wheel_install import Installed, install


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of these tests: each has its own deadlines, and a busy machine must not
    make it fail.
    """
    for item in items:
        if item.nodeid.startswith("tests/e2e/"):
            item.add_marker(pytest.mark.timeout(3 * PATIENCE))


@pytest.fixture(autouse=True, scope="module")
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the variables, wallet and caches of the person who runs the tests from commands."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "RPC",
            "WS_RPC",
            "RUN_ID",
            "AUTHORIZER",
            "WALLET_PRIVATE_KEY_PATH",
            "RAW_WALLET_PRIVATE_KEY",
        ):
            patch.delenv(name, raising=False)
        if binary := validator_binary():
            # it may be in the home directory, which is replaced here
            patch.setenv("AFTERMATH_VALIDATOR", str(binary))
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def xprocess(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[XProcess]:
    """Provide pytest-xprocess with a new directory for this session, without process ids of an
    earlier one.
    """
    root = py.path.local(tmp_path_factory.mktemp("processes"))
    with XProcess(request.config, root) as processes:
        request.config._xprocess = processes  # type: ignore[attr-defined]
        yield processes
        close_fork_server()
        for resource in processes.resources:
            if resource.popen is not None and resource.popen.poll() is None:
                resource.info[0].terminate()


@pytest.fixture(scope="session")
def run_inputs(tmp_path_factory: pytest.TempPathFactory) -> RunInputs:
    return make_run_inputs(tmp_path_factory.mktemp("run_inputs"))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(
    scope="session", params=["embedded", pytest.param("validator", marks=pytest.mark.slow)]
)
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "validator" and validator_binary() is None:
        pytest.skip(
            "solana-test-validator not found (PATH, AFTERMATH_VALIDATOR or ~/.cache/aftermath/bin)"
        )
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def network(
    engine: str, xprocess: XProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Network]:
    """Return a running local network of either engine."""
    running = Network(xprocess, engine, tmp_path_factory.mktemp(f"network-{engine}"))
    yield running
    running.process.kill()


@pytest.fixture
def cluster(network: Network, xprocess: XProcess, tmp_path: Path) -> Iterator[TrainingCluster]:
    """Return a run for this test that is not configured yet."""
    cluster = TrainingCluster(network, xprocess, tmp_path)
    yield cluster
    cluster.kill_all()

"""Tests of a run whose recorded checkpoint is missing: a newcomer still gets the model."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from xprocess import XProcess

from aftermath.cli.connection import sign_in
from aftermath.cli.options import SigningOptions
from aftermath.rules.state import CheckpointKind
from e2e.cluster import ClusterMember, TrainingCluster
from e2e.network import Network
from e2e.run_inputs import RunInputs

LEAVING_SECONDS = 20.0
pytestmark = pytest.mark.parametrize("engine", ["embedded"], indirect=True)


@pytest.fixture(scope="module")
def trained(
    network: Network,
    xprocess: XProcess,
    run_inputs: RunInputs,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TrainingCluster]:
    """Return a run that never ends, after its first epoch, for all tests. It has its own copy of
    the initial model.
    """
    cluster = TrainingCluster(network, xprocess, tmp_path_factory.mktemp("cluster"))
    model = shutil.copytree(run_inputs.model, cluster.place / "first-model")
    rules = {"rounds_per_epoch": 14, "total_steps": 100_000}
    cluster.configure(run_inputs.replacing(model=model).config(cluster.place, **rules))
    cluster.start_three()
    cluster.until_run(
        lambda run: run.epoch >= 1 and run.state.training and run.current.height >= 2,
        "an epoch is over",
    )
    yield cluster
    cluster.kill_all()


def name_place(cluster: TrainingCluster, place: Path) -> None:
    """Record a directory with the right hashes, as any tier-0 member can. Nobody checks that it
    exists.
    """

    async def send() -> None:
        choice = SigningOptions(
            rpc=cluster.network.rpc,
            ws_rpc=cluster.network.ws_rpc,
            wallet_private_key_path=cluster.owner,
        )
        async with sign_in(choice) as chain:
            run = await chain.coordinator.run(cluster.run_id)
            checkpoint = {"kind": int(CheckpointKind.LOCAL), "repo": str(place), "revision": ""}
            step = chain.coordinator.ix.checkpoint(
                cluster.run_id, **checkpoint, hashes=list(run.level_hashes[: run.levels])
            )
            await chain.coordinator.transact(step)

    asyncio.run(send())
    assert cluster.model.checkpoint.repo == str(place)


def warnings(member: ClusterMember) -> list[str]:
    return [event["message"] for event in member.event_log.events_of("warning")]


def joins_and_trains(cluster: TrainingCluster, newcomer: ClusterMember) -> None:
    cluster.until_trains(newcomer, 0, results=3)
    assert [event["source"] for event in newcomer.event_log.events_of("model")] == ["peers"]
    assert cluster.compare_replicas() > 0


PLACES = [
    pytest.param(False, marks=pytest.mark.slow, id="nowhere"),
    pytest.param(True, marks=pytest.mark.nightly, id="another model"),
]


@pytest.mark.parametrize("there", PLACES)
def test_missing_checkpoint_falls_back_to_earlier_one(
    trained: TrainingCluster, there: bool
) -> None:
    newcomer = trained.add_member(1)
    place = trained.place / "bad"
    if there:
        place.mkdir()
        config = json.loads((trained.place / "first-model" / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**config, "hidden_size": 32, "head_dim": 8}))
    trained.until_early_in_an_epoch()
    name_place(trained, place)
    trained.start(newcomer)
    joins_and_trains(trained, newcomer)
    assert any(
        "skipped a checkpoint" in message and str(place) in message
        for message in warnings(newcomer)
    )
    newcomer.process.interrupt(LEAVING_SECONDS)


@pytest.mark.slow  # the last test, because it deletes the run's checkpoints
def test_newcomer_without_any_checkpoint_asks_members_for_model(
    trained: TrainingCluster,
) -> None:
    newcomer = trained.add_member(0)
    trained.until_early_in_an_epoch()
    name_place(trained, trained.place / "nowhere")
    shutil.rmtree(trained.place / "checkpoints")
    shutil.rmtree(trained.place / "first-model")
    trained.start(newcomer)
    joins_and_trains(trained, newcomer)
    assert any("asking other members for the model" in message for message in warnings(newcomer))
    event = trained.until(
        lambda: newcomer.event_log.events_of("checkpoint"), "it keeps a checkpoint"
    )[-1]
    assert (Path(event["path"]) / "tokenizer.json").is_file()  # which it has from the other members

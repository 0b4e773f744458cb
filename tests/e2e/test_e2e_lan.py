"""Tests of members on a LAN without internet access. They find each other only with --peer."""

from __future__ import annotations

from pathlib import Path

import pytest
from solders.pubkey import Pubkey
from xprocess import XProcess

from aftermath.chain.wallet import identity_public, identity_secret, load_wallet
from aftermath.rules.state import RunState
from aftermath.testnet.chain import ask
from e2e.cluster import ClusterMember, TrainingCluster
from e2e.network import Network
from e2e.network_namespaces import lan, possible
from e2e.run_inputs import RunInputs

pytestmark = pytest.mark.slow
STEPS = 6
PORT = 4800


def p2p_key(cluster: TrainingCluster, member: ClusterMember) -> str:
    """Return the p2p key that `show-identity` prints."""
    return identity_public(identity_secret(cluster.run_id, load_wallet(member.key), None)).hex()


def fund(network: Network, wallet: Pubkey) -> None:
    """Request test SOL. Commands do this by themselves only if the network is on their machine."""
    ask(network.rpc, "requestAirdrop", str(wallet), 2_000_000_000)


def test_members_with_static_peers_train_to_end(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    """The first names nobody, the second names the first, and the third names both. For each pair,
    one is enough.
    """
    if not possible():
        pytest.skip("network namespaces need root and iproute2")
    with lan(3) as local_network:
        network = Network(xprocess, "embedded", tmp_path / "network", local_network.here)
        cluster = TrainingCluster(network, xprocess, tmp_path)
        try:
            fund(network, cluster.owner_key)
            cluster.configure(
                run_inputs.config(tmp_path, rounds_per_epoch=STEPS, total_steps=STEPS)
            )
            peers: list[str] = []
            for tier, machine in enumerate(local_network.machines):
                member = cluster.add_member(tier)
                address = local_network.address(tier)
                fund(network, member.wallet)
                cluster.command(
                    "join-authorization-create",
                    "--run-id",
                    cluster.run_id,
                    "--authorizer",
                    str(member.wallet),
                )
                home = tmp_path / f"home-{tier}"
                home.mkdir()
                peer = ("--peer", ",".join(peers)) if peers else ()
                way = (
                    "--bind-p2p-interface",
                    address,
                    "--bind-p2p-port",
                    str(PORT),
                    "--discovery-dir",
                    home / "peers",
                )
                # With an RPC on another machine, a member opens no local paths of the run, so the
                # options pass them.
                files = ("--model-path", run_inputs.model, "--data-path", run_inputs.tokens)
                cluster.start(
                    member, *way, *peer, *files, on=machine, HOME=str(home), TMPDIR=str(home)
                )
                peers.append(f"{p2p_key(cluster, member)}@{address}:{PORT}")
            cluster.command("set-paused", "resume", "--run-id", cluster.run_id)
            cluster.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
            assert [member.process.wait() for member in cluster.members] == [0, 0, 0]
            assert cluster.compare_replicas() == 3 * (STEPS + 1)
            assert cluster.run.lost_sequences == 0
        finally:
            cluster.kill_all()
            network.process.kill()

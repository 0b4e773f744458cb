"""Members on machines of a network without the internet: they name each other, and nothing else
tells them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from solders.pubkey import Pubkey
from xprocess import XProcess

from aftermath.chain.wallet import identity_public, identity_secret, load_wallet
from aftermath.rules.state import RunState
from aftermath.testnet.chain import ask
from e2e.company import Company, Player
from e2e.lan import HERE, NETWORK, lan, possible
from e2e.material import Material
from e2e.network import Network

pytestmark = pytest.mark.slow
STEPS = 6
PORT = 4800


def p2p_key(company: Company, player: Player) -> str:
    """What `show-identity` calls p2p."""
    return identity_public(identity_secret(company.run_id, load_wallet(player.key), None)).hex()


def fund(network: Network, wallet: Pubkey) -> None:
    """Test SOL, which commands ask for by themselves on their own machine only."""
    ask(network.rpc, "requestAirdrop", str(wallet), 2_000_000_000)


def test_members_that_name_each_other_train_to_the_end(
    xprocess: XProcess, material: Material, tmp_path: Path
) -> None:
    """The first names nobody, the second the first, the third both: of every two one is enough."""
    if not possible():
        pytest.skip("network namespaces need root and iproute2")
    with lan(3) as machines:
        network = Network(xprocess, "embedded", tmp_path / "network", HERE)
        company = Company(network, xprocess, tmp_path)
        try:
            fund(network, company.owner_key)
            company.configure(material.config(tmp_path, rounds_per_epoch=STEPS, total_steps=STEPS))
            named: list[str] = []
            for tier, machine in enumerate(machines):
                player = company.player(tier)
                address = f"{NETWORK}.{10 + tier}"
                fund(network, player.wallet)
                company.command(
                    "join-authorization-create",
                    "--run-id",
                    company.run_id,
                    "--authorizer",
                    str(player.wallet),
                )
                home = tmp_path / f"home-{tier}"
                home.mkdir()
                peer = ("--peer", ",".join(named)) if named else ()
                way = (
                    "--bind-p2p-interface",
                    address,
                    "--bind-p2p-port",
                    str(PORT),
                    "--discovery-dir",
                    home / "peers",
                )
                # No RPC of another machine has this one open local paths, so the options say where
                # they are.
                files = ("--model-path", material.model, "--data-path", material.tokens)
                company.start(
                    player, *way, *peer, *files, on=machine, HOME=str(home), TMPDIR=str(home)
                )
                named.append(f"{p2p_key(company, player)}@{address}:{PORT}")
            company.command("set-paused", "resume", "--run-id", company.run_id)
            company.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
            assert [player.process.wait() for player in company.players] == [0, 0, 0]
            assert company.compare_replicas() == 3 * (STEPS + 1)
            assert company.run.lost_sequences == 0
        finally:
            company.disband()
            network.process.kill()

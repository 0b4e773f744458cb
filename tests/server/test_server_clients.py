"""The server and its members over real sockets: admission, calls, limits and restarts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import ClientSession, TCPConnector, WSMsgType
from solana.rpc.types import TxOpts
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from aftermath.base.rate_limit import connection_to_close
from aftermath.chain.addresses import run_addresses
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.failures import RpcRejected, TransactionFailed
from aftermath.coordinator.errors import Refused, Unavailable
from aftermath.p2p.discovery import Whereabouts
from aftermath.rules.state import RunState
from aftermath.server import account_funding, connection_limiter, rpc_methods, session, sessions
from aftermath.server import server as server_module
from aftermath.server.client_backend import ServerDirectory, renew_withdraw_transaction
from aftermath.server.connection import NotAdmitted, ServerRefused
from aftermath.server.handshake import Challenge, parse_challenge, sign_answer
from aftermath.server.server import RunServer
from aftermath.server.tls_trust import TlsTrust
from server.in_process_server import RUN, Visitor, serving, until


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate for localhost, and its key."""

    path: Path
    key: Path

    @classmethod
    def create(cls, folder: Path) -> Certificate:
        certificate = cls(folder / "cert.pem", folder / "key.pem")
        line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
        names = [
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            str(certificate.key),
            "-out",
            str(certificate.path),
        ]
        subprocess.run([*line.split(), *names], check=True, capture_output=True)
        return certificate

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.path, self.key)
        return context


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.create(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.create(tmp_path_factory.mktemp("other"))


async def test_members_join_without_funds_or_cluster() -> None:
    async with (
        serving(init_min_clients=2, min_clients=2) as server,
        Visitor(server) as one,
        Visitor(server) as two,
    ):
        await one.join()
        await two.join(tier=1)
        seen = (await two.chain.view(fresh=True)).members
        assert seen.find(one.wallet.public) is not None
        async with asyncio.timeout(30):
            while (await one.chain.view()).run.state is not RunState.WARMUP:  # as it was pushed
                with contextlib.suppress(Refused):  # NothingToTick
                    await two.chain.tick()
                await asyncio.sleep(0.05)


async def test_only_listed_identities_are_admitted() -> None:
    invited = Keypair()
    async with serving(allowed=frozenset({invited.pubkey()})) as server:
        async with Visitor(server, invited) as client:
            await client.join()
        with pytest.raises(NotAdmitted, match="not on this server's list"):
            await Visitor(server).__aenter__()


async def test_server_of_another_run_is_refused() -> None:
    async with serving() as server:
        visitor = Visitor(server)
        visitor.link._run_id = "other"
        with pytest.raises(ServerRefused, match="serves the run 'demo', not 'other'"):
            await visitor.__aenter__()


def forged(challenge: Challenge) -> list[bytes]:
    """Return answers that do not prove both keys."""
    me = Keypair()
    other = Keypair()
    peer = Keypair()
    honest = json.loads(sign_answer(challenge, me, peer))
    elsewhere = Challenge(challenge.run_id, challenge.genesis, "00" * 32)
    return [
        json.dumps({**honest, "identity": bytes(other.pubkey()).hex()}).encode(),
        json.dumps({**honest, "peer": bytes(other.pubkey()).hex()}).encode(),
        json.dumps({**honest, "identity_signature": "00" * 64}).encode(),
        sign_answer(elsewhere, me, peer),
        sign_answer(Challenge("other", challenge.genesis, challenge.nonce), me, peer),
        b"{}",
        b"[" * 1000,
        b"\x00\xff",
        honest["identity"].encode(),
        json.dumps({**honest, "more": 1}).encode(),
        sign_answer(challenge, me, peer) + b" " * 3000,
    ]


async def converse(server: RunServer, *messages: bytes, key: Keypair | None = None) -> list[str]:
    """Return the server's replies to messages until it closes the connection.

    With `key` the client authenticates first.
    """
    async with ClientSession() as http, http.ws_connect(f"ws://127.0.0.1:{server.port}") as socket:
        challenge = parse_challenge(await socket.receive_str(timeout=10))
        if key is not None:
            await socket.send_str(sign_answer(challenge, key, Keypair()).decode())
            assert json.loads(await socket.receive_str(timeout=10)) == {"type": "welcome"}
        for data in messages:
            await socket.send_bytes(data)
        replies = []
        while (message := await socket.receive(timeout=10)).type is WSMsgType.TEXT:
            replies.append(message.data)
        return replies


async def test_invalid_answer_ends_connection() -> None:
    async with serving() as server, ClientSession() as http:
        for index in range(11):
            async with http.ws_connect(f"ws://127.0.0.1:{server.port}") as socket:
                challenge = parse_challenge(await socket.receive_str(timeout=10))
                broken = forged(challenge)
                assert len(broken) == 11
                await socket.send_bytes(broken[index])
                assert (await socket.receive(timeout=10)).type is not WSMsgType.TEXT, broken[index]
            assert server.sessions.count == 0, broken[index]
        async with Visitor(server) as visitor:
            await visitor.join()


async def test_challenge_answer_is_valid_for_its_connection_only() -> None:
    async with serving() as server, ClientSession() as http:
        url = f"ws://127.0.0.1:{server.port}"
        async with http.ws_connect(url) as first, http.ws_connect(url) as second:
            seen = sign_answer(parse_challenge(await first.receive_str()), Keypair(), Keypair())
            await second.receive_str()
            await second.send_bytes(seen)
            assert (await second.receive(timeout=10)).type is not WSMsgType.TEXT
            await first.send_bytes(seen)
            assert json.loads(await first.receive_str(timeout=10)) == {"type": "welcome"}


async def test_invalid_call_gets_error_or_ends_connection() -> None:
    async with serving() as server:
        call = b'{"jsonrpc":"2.0","id":1,"method":"%s","params":[]}'
        for method in (
            b"requestAirdrop",
            b"getProgramAccounts",
            b"logsSubscribe",
            b"slotSubscribe",
            b"nothing",
        ):
            (reply,) = await converse(server, call % method, b"[]", key=Keypair())
            assert json.loads(reply)["error"]["message"] == "Method not found"
        assert await converse(server, b"[" + call % b"getGenesisHash" + b"]", key=Keypair()) == []
        assert await converse(server, b"\x00\x01", key=Keypair()) == []
        assert await converse(server, b"{" + b" " * 70_000 + b"}", key=Keypair()) == []
        async with ClientSession() as http, http.get(f"http://127.0.0.1:{server.port}/") as reply:
            assert reply.status == 426


async def refusal_of(visitor: Visitor, sent: VersionedTransaction) -> str:
    with pytest.raises(RpcRejected) as caught:
        await visitor.pool.call(
            lambda node: node.send_raw_transaction(bytes(sent), TxOpts(skip_preflight=True))
        )
    return str(caught.value)


async def test_silent_clients_do_not_block_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limiter, "MAX_UNAUTHENTICATED", 12)
    async with serving() as server, ClientSession() as http, contextlib.AsyncExitStack() as stack:
        url = f"ws://127.0.0.1:{server.port}"
        silent = [
            await stack.enter_async_context(http.ws_connect(url))
            for _ in range(connection_limiter.MAX_UNAUTHENTICATED + 3)
        ]
        async with Visitor(server) as visitor:
            await visitor.join()
        challenges = [(await one.receive(timeout=10)).type for one in silent]
        assert set(challenges) == {WSMsgType.TEXT}
        for one in silent[:3]:  # the oldest connections were dropped
            assert (
                await one.receive(timeout=connection_limiter.HANDSHAKE_SECONDS / 2)
            ).type is not WSMsgType.TEXT


def test_makes_room_picks_oldest_of_largest_address() -> None:
    waiting = {1: "10.0.0.1", 2: "10.0.0.2", 3: "10.0.0.3", 4: "10.0.0.2", 5: "10.0.0.2"}
    assert connection_to_close(waiting) == 2
    assert connection_to_close({3: "a", 1: "b"}) == 3


async def test_slow_member_is_not_evicted_by_crowded_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limiter, "MAX_UNAUTHENTICATED", 12)
    async with serving() as server, ClientSession() as http, contextlib.AsyncExitStack() as stack:
        url = f"ws://127.0.0.1:{server.port}"
        elsewhere = TCPConnector(local_addr=("127.0.0.2", 0))
        other = await stack.enter_async_context(ClientSession(connector=elsewhere))
        slow = await stack.enter_async_context(other.ws_connect(url))
        challenge = parse_challenge(await slow.receive_str(timeout=10))
        for _ in range(connection_limiter.MAX_UNAUTHENTICATED + 5):
            await stack.enter_async_context(http.ws_connect(url))
        await slow.send_str(sign_answer(challenge, Keypair(), Keypair()).decode())
        assert json.loads(await slow.receive_str(timeout=10)) == {"type": "welcome"}


@pytest.mark.parametrize("stage", ["request", "request over TLS", "TLS handshake"])
async def test_silent_connections_make_room(
    stage: str, own: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limiter, "MAX_UNAUTHENTICATED", 12)
    trust = TlsTrust.by(own.path) if "TLS" in stage else None
    tls = own.server_context() if trust else None
    given = {}
    if trust and stage != "TLS handshake":
        given = {"ssl": trust.context, "server_hostname": "localhost"}
    async with serving(tls=tls) as server, Visitor(server, trust=trust) as member:
        count = connection_limiter.MAX_UNAUTHENTICATED + 3
        ends = [
            await asyncio.open_connection("127.0.0.1", server.port, **given) for _ in range(count)
        ]
        async with asyncio.timeout(connection_limiter.HANDSHAKE_SECONDS / 2):
            for reader, _ in ends[:3]:  # the oldest
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
        assert not any(reader.at_eof() for reader, _ in ends[3:])
        async with Visitor(server, trust=trust) as visitor:
            await visitor.join()
        assert await member.seat() is None  # the connection still works
        for _, writer in ends:
            writer.transport.abort()


@pytest.mark.parametrize("stage", ["TLS handshake", "request"])
async def test_silent_connections_are_closed_and_members_served(
    stage: str, own: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = own.server_context() if stage == "TLS handshake" else None
    trust = TlsTrust.by(own.path) if tls else None
    monkeypatch.setattr(connection_limiter, "HANDSHAKE_SECONDS", 2.0)
    async with serving(tls=tls) as server, Visitor(server, trust=trust) as member:
        ends = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(300)]
        async with Visitor(server, trust=trust) as visitor:
            await visitor.join()
        assert await member.seat() is None
        async with asyncio.timeout(20):
            for reader, _ in ends:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
        for _, writer in ends:
            writer.transport.abort()


async def test_connection_subscriptions_are_limited() -> None:
    call = b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":[%s]}'
    key = f'"{Keypair().pubkey()}"'.encode()
    async with serving() as server:
        requests = [
            call % (number, b"accountSubscribe", key)
            for number in range(rpc_methods.MAX_SUBSCRIPTIONS + 1)
        ]
        replies = await converse(server, *requests, b"[]", key=Keypair())
        *accepted, refused = map(json.loads, replies)
        assert all("result" in reply for reply in accepted)
        assert (
            refused["error"]["message"]
            == f"a connection may hold {rpc_methods.MAX_SUBSCRIPTIONS} subscriptions"
        )
        again = [
            *requests[:-1],
            call % (98, b"accountUnsubscribe", b"%d" % (accepted[-1]["result"] + 1)),
            requests[-1],
        ]
        # The subscriptions of an ended connection do not count.
        replies = await converse(server, *again, b"[]", key=Keypair())
        assert all("result" in json.loads(reply) for reply in replies)


@pytest.mark.parametrize("ends", [True, False])
async def test_connection_of_member_reading_nothing_ends(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid message or a ping timeout ends it. The server does not wait for its backlog."""
    monkeypatch.setattr(session, "MAX_UNREAD_BYTES", 1 << 30)
    monkeypatch.setattr(session, "PING_SECONDS", 0.25)
    async with serving() as server, ClientSession() as http, Visitor(server) as other:
        async with http.ws_connect(f"ws://127.0.0.1:{server.port}", autoclose=False) as socket:
            challenge = parse_challenge(await socket.receive_str(timeout=10))
            await socket.send_str(sign_answer(challenge, Keypair(), Keypair()).decode())
            await socket.receive_str(timeout=10)
            transport = socket._writer.transport
            assert transport is not None
            transport.pause_reading()
            members = str(run_addresses(server_module.PROGRAM, RUN).members)
            call = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "getMultipleAccounts",
                "params": [[members] * 100],
            }
            for _ in range(5):
                await socket.send_json(call)
            assert len(server._connections) == 3  # `other` has two
            if ends:
                await socket.send_str("[]")
            await until(lambda: len(server._connections) == 2, "the connection has ended")
            transport.abort()
        assert await other.seat() is None


async def test_member_may_send_only_its_own_run_transactions() -> None:
    async with serving() as server, Visitor(server) as visitor, Visitor(server) as other:
        client = CoordinatorClient(visitor.pool, visitor.wallet)
        blockhash, _ = await client.sender.blockhash()
        me = visitor.wallet.keypair

        def signed(*instructions: object, by: Keypair = me) -> VersionedTransaction:
            message = Message.new_with_blockhash(instructions, by.pubkey(), blockhash)  # type: ignore[arg-type]
            return VersionedTransaction(message, [by])

        money = transfer(
            TransferParams(from_pubkey=me.pubkey(), to_pubkey=Pubkey.default(), lamports=1)
        )
        foreign = CoordinatorClient(other.pool, other.wallet).ix
        assert "signed by the identity" in await refusal_of(
            visitor, signed(foreign.tick(RUN), by=other.wallet.keypair)
        )
        assert "about this run" in await refusal_of(visitor, signed(money))
        another = client.ix.init_run(
            "another", main_authority=None, join_authority=None, client_version=""
        )
        assert "about this run" in await refusal_of(visitor, signed(another))
        owner = client.ix.set_paused(RUN, True)
        with pytest.raises(Refused):  # the program's own rule
            await client.sender.send([owner])
        await visitor.join()


async def test_new_identities_get_accounts_by_success_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_funding, "NEW_PER_ADDRESS", 2.0)
    async with serving(tmp_path) as server, contextlib.AsyncExitStack() as stack:
        visitors = [await stack.enter_async_context(Visitor(server)) for _ in range(4)]

        def funded(visitor: Visitor) -> bool:
            return server.node.bank.account(visitor.wallet.pubkey) is not None

        assert not any(map(funded, visitors)), "a connection alone gets no account"
        idle, *members, late = visitors
        with pytest.raises(Refused):  # no transition is due
            await idle.chain.tick()
        client = CoordinatorClient(idle.pool, idle.wallet)
        blockhash, _ = await client.sender.blockhash()
        tick = client.sender.transaction([client.ix.tick(RUN)], (), 200_000, 0, blockhash)
        with pytest.raises(TransactionFailed):
            await idle.pool.call(
                lambda node: node.send_raw_transaction(bytes(tick), TxOpts(skip_preflight=True))
            )
        assert not funded(idle), "a failing transaction gets no account, even without preflight"
        for member in members:
            await member.join()
            assert funded(member)
        with pytest.raises(RpcRejected, match="accepts no new identities for"):
            await late.join()
        await members[0].join(weight=20)


async def test_expired_accounts_stay_deleted_after_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_funding, "AWAY_SECONDS", 0.0)
    guest = Pubkey.new_unique()
    member = Keypair()
    async with serving(tmp_path) as server, Visitor(server, member) as visitor:
        await visitor.join()
        await server.node.provide(guest, account_funding.FUNDING_LAMPORTS)
        server.accounts.sweep()
    async with serving(tmp_path) as server:
        server.accounts.sweep()
        assert server.node.bank.account(guest) is None
        assert server.node.bank.account(member.pubkey()) is not None, "it has a membership"
        async with Visitor(server, member) as visitor:
            assert await visitor.seat() is not None


async def test_dropped_connection_sends_members_signed_withdrawal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "ABSENCE_SECONDS", 0.2)
    monkeypatch.setattr(sessions, "RETURN_SECONDS", 0.2)
    async with serving() as server, Visitor(server) as stays:
        async with Visitor(server) as goes:
            await goes.join()
            keeping = asyncio.create_task(
                renew_withdraw_transaction(
                    goes.chain, goes.link, CoordinatorClient(goes.pool, goes.wallet), RUN
                )
            )
            await until(
                lambda: _client(server, goes).withdraw_transaction, "the transaction is stored"
            )
            keeping.cancel()
        async with asyncio.timeout(30):
            while (await stays.chain.view(fresh=True)).members.pending:
                await asyncio.sleep(0.05)


async def test_log_lines_about_connections_are_rate_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Without a list of members, anyone can create identities.
    caplog.set_level("INFO")
    connected = sessions.Sessions(None)
    lines = int(sessions.LOG_LINES_BURST)
    for number in range(lines + 50):
        connected.add(Keypair().pubkey(), bytes(32), session.Session.__new__(session.Session))
        if number == lines + 20:
            connected._log_limit._tokens = 1.0
    assert caplog.text.count(" is connected") == lines + 1
    assert "is connected; 21 earlier arrivals and departures not shown" in caplog.text


async def test_server_without_withdrawals_withdraws_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ABSENCE_SECONDS", 0.1)
    monkeypatch.setattr(sessions, "RETURN_SECONDS", 0.1)
    async with serving(withdraw=False) as server, Visitor(server) as stays:
        async with Visitor(server) as goes:
            await goes.join()
            keeping = asyncio.create_task(
                renew_withdraw_transaction(
                    goes.chain, goes.link, CoordinatorClient(goes.pool, goes.wallet), RUN
                )
            )
            await until(
                lambda: _client(server, goes).withdraw_transaction, "the transaction is stored"
            )
            keeping.cancel()
        async with asyncio.timeout(30):
            while (
                goes.wallet.pubkey in server.sessions._clients
            ):  # another identity has to send something
                await stays.chain.view(fresh=True)
                await asyncio.sleep(0.05)
        assert (await stays.chain.view(fresh=True)).members.pending


class BrokenConnection:
    """A connection that broke without the server knowing."""

    def put(self, text: str) -> None:
        del text


async def test_server_outage_withdraws_only_absent_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "ABSENCE_SECONDS", 0.05)
    monkeypatch.setattr(sessions, "RETURN_SECONDS", 0.3)
    withdrawn: list[Pubkey] = []

    async def send(identity: Pubkey, will: bytes) -> None:
        withdrawn.append(identity)

    here, there, gone = (Keypair().pubkey() for _ in range(3))
    connections: dict[Pubkey, sessions.PushConnection] = {
        key: BrokenConnection() for key in (here, there, gone)
    }
    connected = sessions.Sessions(send)
    clients = [
        connected.add(key, bytes(key), connection) for key, connection in connections.items()
    ]
    for client in clients:
        connected.set_withdraw_transaction(client, b"transaction")
    await asyncio.sleep(0.01)
    for client in clients:  # the server goes offline
        connected.remove(client, connections[client.identity])
    await asyncio.sleep(0.2)
    assert not withdrawn
    connected.add(here, bytes(here), connections[here])  # the server is online again
    await asyncio.sleep(0.15)
    connected.add(there, bytes(there), connections[there])
    connected.record_message()
    await until(lambda: withdrawn, "the absent identity is withdrawn")
    await connected.close()
    assert withdrawn == [gone]


async def test_foreign_withdraw_transaction_is_refused() -> None:
    async with serving() as server, Visitor(server) as one, Visitor(server) as two:
        await two.join()
        client = CoordinatorClient(two.pool, two.wallet)
        run = (await two.chain.view()).run
        message = Message.new_with_blockhash(
            [client.ix.leave_run(RUN, run.round_id)], two.wallet.pubkey, Hash.default()
        )
        for tx in (
            VersionedTransaction(message, [two.wallet.keypair]),  # signed by another identity
            VersionedTransaction.populate(message, [Keypair().sign_message(b"x")]),
        ):
            await one.link.set_withdraw_transaction(base64.b64encode(bytes(tx)))
        assert _client(server, one).withdraw_transaction is None


def _client(server: RunServer, visitor: Visitor) -> sessions.ConnectedClient:
    return server.sessions._clients[visitor.wallet.pubkey]


async def test_server_reports_peers_addresses_and_departures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "ABSENCE_SECONDS", 0.1)
    monkeypatch.setattr(sessions, "RETURN_SECONDS", 0.1)
    here = Whereabouts(("192.0.2.1:7",))
    there = Whereabouts(("[2001:db8::1]:8", "192.0.2.2:9"), "https://relay.example")
    async with serving() as server, Visitor(server) as one:
        ServerDirectory(one.link).write(here)
        await until(lambda: _client(server, one).whereabouts == here, "the address is announced")
        async with Visitor(server) as two:
            directory = ServerDirectory(two.link)
            directory.write(there)
            assert (
                await until(lambda: directory.read(bytes(one.peer.pubkey())), "it gets the address")
                == here
            )
            assert (
                await until(
                    lambda: one.link.peers.get(bytes(two.peer.pubkey())), "the other one too"
                )
                == there
            )
        async with asyncio.timeout(30):
            while one.link.peers:  # the departed peer is removed
                await one.pool.genesis()
                await asyncio.sleep(0.05)


async def test_acknowledged_state_survives_killed_server(tmp_path: Path) -> None:
    here = Whereabouts(("192.0.2.1:7",))
    async with serving(tmp_path, init_min_clients=2, min_clients=2) as server:
        visitor = Visitor(server)
        await visitor.__aenter__()
        await visitor.link.announce(here)
        await visitor.join()
        before = (await visitor.chain.view(fresh=True)).run
        port = server.port
    try:
        async with serving(tmp_path, port=port) as again:
            after = (await visitor.chain.view(fresh=True)).run
            assert after.seq == before.seq
            assert await visitor.seat() is not None
            await visitor.chain.leave()
            await until(
                lambda: _client(again, visitor).whereabouts == here,
                "the address is announced again",
            )
        for restarted, message in (
            (serving(port=port), "has restarted without its state"),
            (serving(tmp_path, port=port, allowed=frozenset()), "is not on this server's list"),
        ):
            async with restarted:  # without TLS, anyone in between could forge this
                with pytest.raises(
                    Unavailable,
                    match=f"has not answered for 1 s: .* {message}.*, or something between this machine and the server",
                ):
                    await visitor.pool.patient(1.0).genesis()
        async with serving(tmp_path, port=port):
            await visitor.pool.genesis()
    finally:
        await visitor.__aexit__()


async def test_tls_accepts_only_expected_certificate(own: Certificate, other: Certificate) -> None:
    async with serving(tls=own.server_context()) as server:
        async with Visitor(server, trust=TlsTrust.by(own.path)) as visitor:
            await visitor.join()
        with pytest.raises(ServerRefused, match=r"is not trusted.*\nWithout --tls-ca"):
            await Visitor(server, trust=TlsTrust.by(None)).__aenter__()
        with pytest.raises(
            ServerRefused, match=rf"is not trusted.*\nIt must be {re.escape(str(other.path))}"
        ):
            await Visitor(server, trust=TlsTrust.by(other.path)).__aenter__()
        plain = Visitor(server)
        plain.pool.patience = 0.5
        with pytest.raises(Unavailable, match="has not answered"):
            await plain.__aenter__()


async def test_member_retries_while_server_has_another_certificate(
    tmp_path: Path, own: Certificate, other: Certificate
) -> None:
    state = tmp_path / "state"
    async with serving(state, tls=own.server_context()) as server:
        port = server.port
        visitor = Visitor(server, trust=TlsTrust.by(own.path))
        await visitor.__aenter__()
    try:
        async with serving(state, port=port, tls=other.server_context()):
            with pytest.raises(
                Unavailable,
                match=r"has not answered for 1 s: the certificate of the server .* is not",
            ):
                await visitor.pool.patient(1.0).genesis()
        async with serving(state, port=port, tls=own.server_context()):
            await visitor.pool.genesis()
        async with serving(port=port, tls=own.server_context()):  # the certificate proves it
            with pytest.raises(ServerRefused, match="restarted without its state"):
                await visitor.pool.genesis()
    finally:
        await visitor.__aexit__()


async def test_connections_broken_for_one_member_do_not_end_it(own: Certificate) -> None:
    async with (
        serving(tls=own.server_context()) as server,
        Visitor(server, trust=TlsTrust.by(own.path)) as visitor,
    ):
        connections = _client(server, visitor).connections
        connection = visitor.link._connection
        assert connection is not None
        broken = {BrokenConnection() for _ in range(sessions.MAX_CONNECTIONS_PER_IDENTITY)}
        connections |= broken
        await connection.close()
        call = asyncio.create_task(visitor.pool.genesis())
        await asyncio.sleep(0.2)
        assert not call.done()
        with pytest.raises(
            ServerRefused, match="has 4 connections already"
        ):  # a new process of the member
            await Visitor(server, visitor.wallet.keypair, TlsTrust.by(own.path)).__aenter__()
        connections -= broken
        assert await call


async def test_reconnecting_member_is_not_withdrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as server, Visitor(server) as visitor:
        await visitor.join()
        connection = visitor.link._connection
        assert connection is not None
        await connection.close()
        assert await visitor.seat() is not None
        assert visitor.link._connection is not connection
        assert server.sessions.is_connected(visitor.wallet.pubkey)

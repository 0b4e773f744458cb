"""Test the discovery directory: private, atomic, refreshed, and checked when read."""

import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.p2p import discovery
from aftermath.p2p import iroh as transport_iroh
from aftermath.p2p.discovery import LocalDirectory, Whereabouts, local_discovery_dir
from aftermath.p2p.transport import DiscoveryFailed
from p2p.nodes import identity, join, until

ME = bytes(range(32))
HERE = Whereabouts(("127.0.0.1:4000", "[::1]:4001"))


@pytest.fixture
def directory(tmp_path):
    """Return a prepared directory with the name of our entry."""
    directory = LocalDirectory(tmp_path / "a" / "run", ME)
    directory.prepare()
    return directory


def test_discovery_entry_is_read_back_and_private(directory):
    directory.write(HERE)
    assert directory.read(ME) == HERE
    file = directory.path / f"{ME.hex()}.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert [one.name for one in directory.path.iterdir()] == [file.name]
    directory.remove()
    directory.remove()
    assert directory.read(ME) is None


def test_discovery_entry_when_lost_or_changed_is_rewritten(directory):
    directory.refresh(HERE)
    before = (directory.path / f"{ME.hex()}.json").stat().st_ino
    directory.refresh(HERE)
    assert (directory.path / f"{ME.hex()}.json").stat().st_ino == before
    directory.refresh(Whereabouts(("127.0.0.1:5000",)))
    assert directory.read(ME) == Whereabouts(("127.0.0.1:5000",))
    directory.remove()
    directory.path.rmdir()
    directory.refresh(HERE)
    assert directory.read(ME) == HERE


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"addresses": []}',
        b'{"addresses": "127.0.0.1:1"}',
        b'{"addresses": ["localhost:80"]}',
        b'{"addresses": ["127.0.0.1:0"]}',
        b'{"addresses": ["127.0.0.1:65536"]}',
        b'{"addresses": ["::1:80"]}',
        b'{"addresses": ["[127.0.0.1]:80"]}',
        b'{"addresses": ["127.0.0.1"]}',
        b'{"addresses": ["127.0.0.1:80"], "relay": "file:///etc/passwd"}',
        b'{"addresses": ["127.0.0.1:80"], "relay": "http://[::1"}',
        b'{"addresses": ["127.0.0.1:80"], "relay": "http://' + b"r" * discovery.MAX_RELAY + b'"}',
        b'{"addresses": ["[fe80::1%' + b"x" * discovery.MAX_ADDRESS + b']:80"]}',
        b'{"addresses": [' + b'"127.0.0.1:80",' * 16 + b'"127.0.0.1:80"]}',
        b'{"addresses": ["127.0.0.1:80"], "pad": "' + b"x" * discovery.MAX_FILE + b'"}',
        b"\xff\xfe",
    ],
)
def test_discovery_entry_when_hostile_is_ignored(directory, text):
    (directory.path / f"{ME.hex()}.json").write_bytes(text)
    assert directory.read(ME) is None


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(tmp_path_factory, data):
    directory = LocalDirectory(tmp_path_factory.getbasetemp() / "random", ME)
    directory.prepare()
    (directory.path / f"{ME.hex()}.json").write_bytes(data)
    assert directory.read(ME) is None


def test_discovery_failed_write_leaves_no_file(directory, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(discovery.os, "replace", full)
    with pytest.raises(DiscoveryFailed, match="No space left"):
        directory.write(HERE)
    assert list(directory.path.iterdir()) == []


def test_discovery_links_and_pipes_are_not_followed(directory):
    target = directory.path / "real"
    target.write_bytes(b'{"addresses": ["127.0.0.1:80"]}')
    name = directory.path / f"{ME.hex()}.json"
    name.symlink_to(target)
    assert directory.read(ME) is None
    name.unlink()
    os.mkfifo(name)
    assert directory.read(ME) is None


def test_discovery_directory_writable_by_others_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(DiscoveryFailed, match=r"(?s)other users.*chmod 700"):
        LocalDirectory(shared, ME).prepare()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DiscoveryFailed, match="Choose another directory"):
        LocalDirectory(tmp_path / "file" / "run", ME).prepare()


RUN = {"cluster": "genesis", "program": "program", "identity": "0" * 16}


def test_discovery_default_directory_is_per_user_and_run():
    mine = local_discovery_dir("my-run", **RUN)
    assert mine.name.startswith("my-run-")
    assert mine == local_discovery_dir("my-run", **RUN)
    assert str(os.getuid()) in mine.parent.name
    odd = local_discovery_dir("../../etc", **RUN)
    assert odd.parent == mine.parent
    assert odd != local_discovery_dir("../../etd", **RUN)


@pytest.mark.parametrize(
    "other", [{"cluster": "other"}, {"program": "other"}, {"identity": "1" * 16}]
)
def test_local_discovery_dir_differs_between_runs(other):
    assert local_discovery_dir("my-run", **RUN) != local_discovery_dir("my-run", **(RUN | other))


async def test_endpoint_keeps_its_entry_and_removes_it_at_close(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(transport_iroh, "REFRESH_S", 0.05)
    node = await opened(1)
    entry = tmp_path / "run" / f"{identity(1).hex()}.json"
    assert entry.exists()
    entry.unlink()
    await until(entry.exists)
    await node.close()
    assert not entry.exists()


async def test_local_discovery_does_not_contact_n0(opened, monkeypatch):
    def preset():
        raise AssertionError("n0's discovery would be told of this endpoint")

    monkeypatch.setattr(transport_iroh.iroh, "preset_n0", preset)
    await opened(1)


async def test_forged_address_costs_only_a_dial(opened, tmp_path):
    first = await opened(1)
    second = await opened(2)
    third = await opened(3)
    ids = sorted([first, second], key=lambda one: one.node_id)
    forged = LocalDirectory(tmp_path / "run", ids[1].node_id)
    port = int(third._endpoint.bound_sockets()[0].rpartition(":")[2])
    truth = forged.read(ids[1].node_id)
    forged.write(Whereabouts((f"127.0.0.1:{port}",)))
    join([first, second, third])
    await until(lambda: third.node_id in ids[0].reachable())
    assert truth is not None
    forged.write(truth)
    await until(lambda: ids[1].node_id in ids[0].reachable(), 30)

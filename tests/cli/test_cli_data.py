"""`data tokenize`, `inspect`, `fetch` and `serve`, as people call them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aftermath.data.download import download
from aftermath.data.http import HttpClient
from aftermath.data.remote import RemoteTokens
from aftermath.data.source import DataError
from cli.cli_runs import invoke
from faulty_web import serving

PROGRAM = [sys.executable, "-m", "aftermath"]


def test_text_becomes_tokens_that_can_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some words, some more of them")
    tokenize = ("data", "tokenize", "--input", tmp_path / "text", "--output", tmp_path / "out")
    assert invoke(*tokenize, "--json").data["tokens"] == 30
    found = invoke("data", "inspect", "--data-path", tmp_path / "out", "--seq-len", 8, "--json").data
    assert (found["tokens"], found["sequences"], [one["bytes"] for one in found["files"]]) == (30, 3, [60])
    assert found["seq_len"] == 8
    again = invoke(*tokenize)
    assert again.code == 1
    assert "already holds token files" in again.err


def test_files_are_fetched_once_and_whole(tmp_path: Path) -> None:
    with serving() as web:
        web.files = {f"/t{number:03}.bin": bytes([number]) * 1000 for number in (1, 2)}
        words = ("data", "fetch", "--output", tmp_path, "--files", 2, "--left-pad-zeros", 3)
        assert invoke(*words, "--url-template", f"{web.url}/t{{}}.bin", "--json").data["bytes"] == 2000
        assert {path.name: path.read_bytes() for path in tmp_path.glob("*.bin")} == {
            "t001.bin": bytes([1]) * 1000,
            "t002.bin": bytes([2]) * 1000,
        }
        web.asked.clear()
        download(f"{web.url}/t001.bin", tmp_path, HttpClient(), lambda here, whole: None)
        assert web.asked == [("/t001.bin", "bytes=0-0")]
        web.files["/t001.bin"] += b"more"
        with pytest.raises(DataError, match="of another size"):
            download(f"{web.url}/t001.bin", tmp_path, HttpClient(), lambda here, whole: None)


def test_a_server_serves_until_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(np.arange(64, dtype="<u2").tobytes())
    (tmp_path / "data.toml").write_text('dir = "a.bin"\nseq_len = 8\n')
    words = [*PROGRAM, "data", "serve", "--config", str(tmp_path / "data.toml"), "--host", "127.0.0.1", "--port", "0"]
    environment = os.environ | {"COLUMNS": "200"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        line = server.stderr.readline()
        port = int(line.rpartition(":")[2])
        assert RemoteTokens(f"127.0.0.1:{port}", 8, 64).read([2])[0].tolist() == list(range(16, 24))
        server.send_signal(2)
        assert server.wait(10) == 130

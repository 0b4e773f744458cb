"""Tests of `data tokenize`, `inspect`, `fetch` and `serve` as users call them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from aftermath.data.bytelevel import byte_tokenizer
from aftermath.data.data_server_client import RemoteTokens
from aftermath.data.http import HttpClient, download
from aftermath.data.source import DataError
from cli.cli_runs import invoke
from faulty_web import serving

PROGRAM = [sys.executable, "-m", "aftermath"]


def test_tokenize_output_is_readable_by_inspect(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some words, some more of them")
    tokenize = ("data", "tokenize", "--input", tmp_path / "text", "--output", tmp_path / "out")
    assert invoke(*tokenize, "--json").data["tokens"] == 30
    data = invoke("data", "inspect", "--data-path", tmp_path / "out", "--seq-len", 8, "--json").data
    assert (data["tokens"], data["sequences"], [one["bytes"] for one in data["files"]]) == (
        30,
        3,
        [60],
    )
    assert data["seq_len"] == 8
    again = invoke(*tokenize)
    assert again.code == 1
    assert "already has token files" in again.err


def _tokenizer_with(place: Path, *special: str) -> Path:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(list(special))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding()
    tokenizer.save(str(place / "t.json"))
    return place / "t.json"


@pytest.mark.parametrize(
    ("options", "config", "end_token"),
    [
        ((), {"eos_token": "<x>", "chat_template": "kept"}, "<x>"),
        (("--end-token", "<y>"), {"eos_token": "<x>", "chat_template": "kept"}, "<y>"),
        ((), None, "<|endoftext|>"),
    ],
)
def test_tokenize_writes_tokenizer_with_end_token(
    tmp_path: Path, options: tuple[str, ...], config: dict[str, str] | None, end_token: str
) -> None:
    (tmp_path / "a.txt").write_text("more than three tokens")
    tokenizer = _tokenizer_with(tmp_path, "<x>", "<y>")
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    words = (
        "data",
        "tokenize",
        "--input",
        tmp_path / "a.txt",
        "--output",
        tmp_path / "out",
        "--tokenizer",
        tokenizer,
    )
    data = invoke(*words, *options, "--json").data
    assert (data["tokens"], data["end_token"], data["vocab_size"]) == (23, end_token, 259)
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written["eos_token"] == end_token
    assert config is None or written["chat_template"] == "kept"
    saved = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert (saved["truncation"], saved["padding"]) == (None, None)


_PEAK_OF = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "wait4"), reason="the system does not tell a child's memory")
def test_tokenize_large_file_has_bounded_memory(tmp_path: Path) -> None:
    """20 MB of text, which took 5.3 GB when a file was tokenised at once."""
    line = "A story of a red fox, an old river and a far hill, told again.\n"
    with (tmp_path / "stories.txt").open("w") as file:
        for _ in range(2000):
            file.write(line * 160 + "<|endoftext|>\n")
    words = [
        *PROGRAM,
        "data",
        "tokenize",
        "--input",
        str(tmp_path / "stories.txt"),
        "--output",
        str(tmp_path / "out"),
    ]
    # Linux counts the memory of the process that starts a child as the child's own, so a small
    # process starts it.
    measured = subprocess.run(
        [sys.executable, "-c", _PEAK_OF, *words], capture_output=True, text=True, check=True
    )
    peak = int(measured.stdout.split()[-1])
    assert peak * (1 if sys.platform == "darwin" else 1024) < 500e6
    tokens = np.fromfile(tmp_path / "out" / "tokens-00000.bin", "<u2")
    assert (len(tokens), int((tokens == 256).sum())) == (2000 * (160 * len(line) + 1), 2000)


def test_tokenize_without_end_token_warns(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "t.json"))
    (tmp_path / "a.txt").write_text("two two")
    tokenize = (
        "data",
        "tokenize",
        "--input",
        tmp_path / "a.txt",
        "--tokenizer",
        tmp_path / "t.json",
    )
    outcome = invoke(*tokenize, "--output", tmp_path / "out")
    assert outcome.code == 0
    assert "no end-of-text token is known" in outcome.err
    assert "--end-token" in outcome.err
    wrong = invoke(*tokenize, "--output", tmp_path / "other", "--end-token", "<eos>")
    assert wrong.code == 2
    assert "'<eos>' is not a token of the tokenizer" in wrong.err
    assert not (tmp_path / "other").exists()


def test_tokenize_rare_records_without_text_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"body": "lost"}\n{"text": "two"}\n')
    words = ("data", "tokenize", "--input", tmp_path / "a.jsonl", "--output")
    outcome = invoke(*words, tmp_path / "out")
    assert outcome.code == 0
    assert (
        f'skipped 1 record without text in "text", the first at {tmp_path / "a.jsonl"}, line 2'
        in outcome.err
    )
    assert "--text-field" in outcome.err
    counts = invoke(*words, tmp_path / "again", "--json").data
    assert (counts["documents"], counts["skipped_records"]) == (2, 1)
    refused = invoke(*words, tmp_path / "other", "--text-field", "body")
    assert refused.code == 1
    assert "models.md#from-text-to-tokens" in refused.err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"hello", "is not a tokenizer"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a git-lfs pointer"),
        (None, "cannot read"),
    ],
)
def test_tokenize_with_invalid_tokenizer_is_refused(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    (tmp_path / "a.txt").write_text("one")
    if content is not None:
        (tmp_path / "t.json").write_bytes(content)
    words = ("data", "tokenize", "--input", tmp_path / "a.txt", "--output", tmp_path / "out")
    refused = invoke(*words, "--tokenizer", tmp_path / "t.json")
    assert refused.code == 1
    assert says in refused.err
    assert "fix:" in refused.err
    assert not (tmp_path / "out").exists()


def test_fetch_downloads_each_file_once(tmp_path: Path) -> None:
    with serving() as web:
        web.files = {f"/t{number:03}.bin": bytes([number]) * 1000 for number in (1, 2)}
        words = ("data", "fetch", "--output", tmp_path, "--files", 2, "--left-pad-zeros", 3)
        assert (
            invoke(*words, "--url-template", f"{web.url}/t{{}}.bin", "--json").data["bytes"] == 2000
        )
        assert {path.name: path.read_bytes() for path in tmp_path.glob("*.bin")} == {
            "t001.bin": bytes([1]) * 1000,
            "t002.bin": bytes([2]) * 1000,
        }
        web.requests.clear()
        download(f"{web.url}/t001.bin", tmp_path, HttpClient(), lambda here, whole: None)
        assert web.requests == [("/t001.bin", "bytes=0-0")]
        web.files["/t001.bin"] += b"more"
        with pytest.raises(DataError, match="with another size"):
            download(f"{web.url}/t001.bin", tmp_path, HttpClient(), lambda here, whole: None)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_inspect_unreadable_file_error_names_fix(tmp_path: Path) -> None:
    np.arange(64, dtype="<u2").tofile(tmp_path / "a.bin")
    (tmp_path / "a.bin").chmod(0)
    refused = invoke("data", "inspect", "--data-path", tmp_path)
    assert refused.code == 1
    assert "a.bin: Permission denied" in refused.err
    assert "chmod u+r" in refused.err


def test_data_serve_runs_until_stopped(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(np.arange(64, dtype="<u2").tobytes())
    (tmp_path / "data.toml").write_text('dir = "a.bin"\nseq_len = 8\n')
    words = [
        *PROGRAM,
        "data",
        "serve",
        "--config",
        str(tmp_path / "data.toml"),
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    environment = os.environ | {"COLUMNS": "200"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        line = server.stderr.readline()
        port = int(line.rpartition(":")[2])
        assert RemoteTokens(f"127.0.0.1:{port}", 8, 64).read([2])[0].tolist() == list(range(16, 24))
        server.send_signal(2)
        assert server.wait(10) == 130

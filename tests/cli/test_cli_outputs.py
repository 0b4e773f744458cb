"""Commands do not remove or replace files and directories that they did not write."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aftermath.base.outputs import MARK, OutputError
from aftermath.chain.wallet import create_wallet
from aftermath.cli.present import Result, aside, listing, show
from aftermath.events.stream import JsonLines
from cli.cli_runs import invoke
from cli.conftest import SHAPE
from cli.test_cli_decode_gradients import put, result_of
from cli.test_cli_events import Writer
from member.result_inbox import SCHEMA

Line = Callable[[Path, Path], list[str | Path]]


def model_init(run_dir: Path, out: Path) -> list[str | Path]:
    return ["model", "init", "--out", out, *SHAPE]


def model_merge(run_dir: Path, out: Path) -> list[str | Path]:
    return [
        "model",
        "merge",
        "--into",
        run_dir / "model",
        "--slice",
        run_dir / "model",
        "--out",
        out,
    ]


def model_export(run_dir: Path, out: Path) -> list[str | Path]:
    return [
        "model",
        "export",
        "--src",
        run_dir / out.name.removesuffix("-tier1"),
        "--tiers",
        "1",
        "--out",
        out.parent,
    ]


def train_local(run_dir: Path, out: Path) -> list[str | Path]:
    chosen = [
        "--steps",
        "2",
        "--total-batch",
        "2",
        "--warmup-steps",
        "1",
        "--lr",
        "0.001",
        "--device",
        "cpu",
        "--threads",
        "1",
    ]
    return ["train-local", "--config-path", run_dir / "config.toml", *chosen, "--out", out]


def local_testnet(run_dir: Path, out: Path) -> list[str | Path]:
    clients = ["--num-clients", "1", "--headless", "--headless-exit-after-secs", "1"]
    return [
        "local-testnet",
        "start",
        "--config-path",
        run_dir / "config.toml",
        *clients,
        "--dir",
        out,
    ]


def localnet_reset(run_dir: Path, out: Path) -> list[str | Path]:
    return ["localnet", "--port", "0", "--reset", "--ledger", out]


DIRECTORIES = [model_init, model_merge, model_export, train_local, local_testnet, localnet_reset]


def foreign_directory(place: Path, home: Path) -> None:
    (place / "sub").mkdir(parents=True)
    (place / "sub" / "thesis.txt").write_text("years of work")


def directory_with_a_checkpoint(place: Path, home: Path) -> None:
    place.mkdir()
    (place / "config.json").write_text("{}")
    (place / "genesis.bin").write_text("as a validator's")


def symbolic_link(place: Path, home: Path) -> None:
    foreign_directory(home / "elsewhere", home)
    place.symlink_to(home / "elsewhere")


def dangling_link(place: Path, home: Path) -> None:
    place.symlink_to(home / "nowhere")


def wallet(place: Path, home: Path) -> None:
    create_wallet(place)


def device(place: Path, home: Path) -> None:
    place.symlink_to("/dev/null")


PLACES = [
    foreign_directory,
    directory_with_a_checkpoint,
    symbolic_link,
    dangling_link,
    wallet,
    device,
]


def everything_in(root: Path) -> dict[str, str]:
    """Return every path below a directory, with the targets of links and the contents of files."""
    entries = {}
    for path in sorted(root.rglob("*")):
        what = (
            f"-> {path.readlink()}"
            if path.is_symlink()
            else path.read_bytes().hex()
            if path.is_file()
            else "/"
        )
        entries[str(path.relative_to(root))] = what
    return entries


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "user").mkdir()
    return tmp_path / "user"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("line", DIRECTORIES, ids=lambda line: line.__name__)
def test_directory_output_keeps_foreign_entries(
    line: Line, place: Callable[[Path, Path], None], run_dir: Path, home: Path
) -> None:
    if line is localnet_reset and place is dangling_link:
        pytest.skip("a ledger is made where there is none")
    place(home / "model-tier1", home)
    before = everything_in(home)
    outcome = invoke(*line(run_dir, home / "model-tier1"))
    assert outcome.code in (1, 2), outcome.out
    assert "fix: " in outcome.err, outcome.err
    assert everything_in(home) == before


@pytest.mark.parametrize(
    "line", [model_init, model_merge, train_local], ids=lambda line: line.__name__
)
def test_directory_output_refuses_current_directory_and_stdout(
    line: Line, run_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign_directory(home / "work", home)
    monkeypatch.chdir(home / "work")
    before = everything_in(home)
    for out in (".", "..", "-"):
        assert invoke(*line(run_dir, Path(out))).code in (1, 2)
    assert everything_in(home) == before


@pytest.mark.parametrize(
    "line", [model_init, model_merge, model_export], ids=lambda line: line.__name__
)
def test_directory_output_replaces_own_output(line: Line, run_dir: Path, home: Path) -> None:
    out = home / "model-tier1"
    assert invoke(*line(run_dir, out)).code == 0
    first = everything_in(out)
    mark = first.pop(MARK)
    assert invoke(*line(run_dir, out)).code == 0
    second = everything_in(out)
    assert second.pop(MARK) != mark
    assert second == first

    (out / "notes.txt").write_text("mine")
    changed = everything_in(out)
    refused = invoke(*line(run_dir, out))
    assert refused.code == 1
    assert "notes.txt" in refused.err
    assert everything_in(out) == changed


def train_further(file: Path) -> None:
    """Change a file's contents, but not its size."""
    before = file.stat()
    contents = bytearray(file.read_bytes())
    contents[-1] ^= 1
    file.write_bytes(contents)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def drop_file_records(file: Path) -> None:
    """Write the mark as earlier versions did, with sizes only."""
    mark = json.loads((file.parent / MARK).read_bytes())
    mark["files"] = {name: record["size"] for name, record in mark["files"].items()}
    (file.parent / MARK).write_text(json.dumps(mark))


@pytest.mark.parametrize(
    "change", [train_further, drop_file_records], ids=lambda change: change.__name__
)
@pytest.mark.parametrize(
    ("line", "name"),
    [
        (model_init, "model-tier1"),
        (model_merge, "model-tier1"),
        (model_export, "model-tier1"),
        (model_export, "model"),
        (train_local, "model-tier1/checkpoint"),
    ],
)
def test_directory_output_keeps_retrained_weights(
    line: Line, name: str, change: Callable[[Path], None], run_dir: Path, home: Path
) -> None:
    out = home / "model-tier1"
    assert invoke(*line(run_dir, out)).code == 0
    change(home / name / "model.safetensors")
    before = everything_in(home)
    refused = invoke(*line(run_dir, out))
    assert refused.code == 1
    changed = (
        rf"error: .*/{name}/\S+ has changed since [a-z -]+ wrote it: nothing was changed\nfix: "
    )
    assert re.search(changed, refused.err), refused.err
    assert everything_in(home) == before


def test_output_of_another_command_is_not_replaced(run_dir: Path, home: Path) -> None:
    assert invoke(*model_init(run_dir, home / "model")).code == 0
    before = everything_in(home)
    assert invoke(*model_merge(run_dir, home / "model")).code == 1
    assert everything_in(home) == before


def test_tokenize_keeps_foreign_tokenizer_file(home: Path) -> None:
    (home / "tokenizer.json").write_text("mine")
    assert invoke("data", "tokenize", "--budget-bytes", 1000, "--output", home).code == 1
    assert everything_in(home) == {"tokenizer.json": b"mine".hex()}


# --- files


def events_in(home: Path) -> Path:
    if not (home / "events").exists():
        Writer(home / "events", 0).train(1, 7)
    return home / "events"


def plot(home: Path, out: Path) -> list[str | Path]:
    return ["plot", events_in(home), "--out", out]


def events_csv(home: Path, out: Path) -> list[str | Path]:
    return ["events", events_in(home), "--csv", "--out", out]


def events_lines(home: Path, out: Path) -> list[str | Path]:
    return ["events", events_in(home), "--out", out]


def preview(home: Path, out: Path) -> list[str | Path]:
    if not (home / "run.toml").exists():
        assert invoke("init", "--out", home / "run.toml").code == 0
    return ["preview-lr", "--config-path", home / "run.toml", "--plot", out]


def init(home: Path, out: Path) -> list[str | Path]:
    return ["init", "--force", "--out", out]


def dense(home: Path, out: Path) -> list[str | Path]:
    target = home / "results" / out.name
    if not target.exists():
        target.parent.mkdir()
        put(target.parent, result_of(SCHEMA, 1)).rename(target)
    return ["decode-gradients", target, "--out", out.parent]


FILES = [plot, events_csv, events_lines, preview, init, dense]


@pytest.mark.parametrize(
    "place",
    [foreign_directory, symbolic_link, dangling_link, wallet, device],
    ids=lambda p: p.__name__,
)
@pytest.mark.parametrize("line", FILES, ids=lambda line: line.__name__)
def test_file_output_keeps_foreign_entries(
    line: Line, place: Callable[[Path, Path], None], home: Path
) -> None:
    out = home / "out" / "file.png"
    out.parent.mkdir()
    words = line(home, out)
    place(out, home)
    before = everything_in(home)
    outcome = invoke(*words)
    assert outcome.code in (1, 2), outcome.out
    assert "fix: " in outcome.err, outcome.err
    assert everything_in(home) == before


@pytest.mark.parametrize("line", FILES, ids=lambda line: line.__name__)
def test_file_output_replaces_own_output(line: Line, home: Path) -> None:
    (home / "out").mkdir()
    words = line(home, home / "out" / "file.png")
    assert invoke(*words).code == 0
    assert invoke(*words).code == 0
    assert (home / "out" / "file.png").stat().st_size


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limit the files of this process to `size` bytes, like a nearly full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)  # it would be cut, and fail to load later
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("line", FILES, ids=lambda line: line.__name__)
def test_file_output_on_full_disk_leaves_nothing(line: Line, home: Path) -> None:
    (home / "out").mkdir()
    words = line(home, home / "out" / "file.png")
    before = everything_in(home)
    with room_for(1000):
        outcome = invoke(*words)
    assert outcome.code == 1
    assert outcome.err.startswith("error: cannot write "), outcome.err
    assert "fix: Free some space" in outcome.err
    assert everything_in(home) == before


def identity(home: Path, out: Path) -> list[str | Path]:
    return ["show-identity", "--create", "-w", out]


def profile(home: Path, out: Path) -> list[str | Path]:
    return ["config", "set", "run", "demo"]


def run_files(home: Path, out: Path) -> list[str | Path]:
    return ["run-files", "demo"]


def tokenize(home: Path, out: Path) -> list[str | Path]:
    return ["data", "tokenize", "--budget-bytes", "1000", "--output", out]


def tokenize_held_out(home: Path, out: Path) -> list[str | Path]:
    return [*tokenize(home, home / "tokens"), "--held-out", out]


def fetch(home: Path, out: Path) -> list[str | Path]:
    return ["data", "fetch", "--url-template", "http://127.0.0.1:1/{}", "--output", out]


def localnet(home: Path, out: Path) -> list[str | Path]:
    return ["localnet", "--ledger", out]


def start_testnet(home: Path, out: Path) -> list[str | Path]:
    return ["local-testnet", "start", "--num-clients", "1", "--config-path", "demo", "--dir", out]


@pytest.mark.parametrize(
    "line",
    [tokenize, tokenize_held_out, fetch, localnet, start_testnet],
    ids=lambda line: line.__name__,
)
def test_dash_as_directory_is_refused(
    line: Line, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    words = line(home, Path("-"))
    with socket.create_server(("127.0.0.1", 0)) as taken:  # a network there ends at once
        words += ["--port", taken.getsockname()[1]] if line is localnet else []
        refused = invoke(*words)
    assert refused.err.startswith(
        "error: a directory cannot be written to standard output\nfix: Name "
    )
    assert everything_in(home) == {}


def test_dash_output_of_plot_ignores_directory_of_that_name(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / "-").mkdir()
    assert invoke(*plot(home, Path("-"))).code == 0


def test_testnet_in_file_is_refused(home: Path) -> None:
    (home / "file").write_text("mine")
    for place in ("file", "file/below"):
        refused = invoke(*start_testnet(home, home / place))
        assert f"error: {home}/file is not a directory: nothing was changed\n" in refused.err
        assert "fix: Name another directory: --dir DIR" in refused.err


@pytest.mark.parametrize("line", [identity, profile, run_files], ids=lambda line: line.__name__)
def test_output_without_room_in_new_directory_leaves_nothing(
    line: Line, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("AFTERMATH_PROFILE", "config/new/profile.toml")
    with room_for(0):
        outcome = invoke(*line(home, Path("new/er/file")))
    assert outcome.code == 1
    assert re.search(
        r"^error: cannot write the [^:]+: File too large$", outcome.err, re.MULTILINE
    ), outcome.err
    assert "fix: Free some space" in outcome.err
    assert not [path for path in home.rglob("*") if path.is_file() and path.stat().st_size]
    assert not (home / "new").exists()


def test_plot_into_directory_is_refused_with_file_name(home: Path) -> None:
    (home / "pictures").mkdir()
    outcome = invoke(*plot(home, home / "pictures"))
    assert outcome.code == 1
    assert f"error: --out {home}/pictures is a directory\nfix: Name a file in it" in outcome.err
    assert f"--out {home}/pictures/loss.png" in outcome.err


def test_export_keeps_foreign_files(run_dir: Path, home: Path) -> None:
    """A file next to the weights stays foreign when the export adds its manifest."""
    assert invoke(*model_init(run_dir, home / "model")).code == 0
    (home / "model" / "notes.txt").write_text("mine")
    assert invoke("model", "export", "--src", home / "model", "--tiers", "1").code == 0
    refused = invoke(*model_init(run_dir, home / "model"))
    assert refused.code == 1
    assert "holds notes.txt" in refused.err


@pytest.mark.parametrize("where", [[], ["--out", "new"]])
def test_export_of_foreign_directory_is_refused_with_option(
    where: list[str], run_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    assert invoke(*model_init(run_dir, home / "model")).code == 0
    foreign_directory((home / "new" if where else home) / "model-tier1", home)
    refused = invoke("model", "export", "--src", "model", "--tiers", "1", *where)
    assert "holds sub, which model export did not write: nothing was changed" in refused.err
    assert "fix: Export to another directory: --out DIRECTORY" in refused.err


@pytest.mark.parametrize(
    ("out", "error"),
    [
        ("model", "model is an input of this command: nothing was changed"),
        ("model/exported", "model/exported is inside the input directory"),
        ("file", "file is not a directory: nothing was changed"),
        ("file/new", "file is not a directory: nothing was changed"),
        ("-", "a directory cannot be written to standard output"),
    ],
)
def test_export_into_unfit_place_is_refused(
    out: str, error: str, run_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / "file").write_text("mine")
    assert invoke(*model_init(run_dir, home / "model")).code == 0
    before = everything_in(home)
    refused = invoke("model", "export", "--src", "model", "--tiers", "1", "--out", out)
    assert f"error: {error}" in refused.err
    assert "fix: Export to another directory: --out DIRECTORY" in refused.err
    assert everything_in(home) == before


@pytest.mark.parametrize(
    "line", [plot, events_csv, events_lines, init], ids=lambda line: line.__name__
)
def test_dash_output_writes_to_standard_output(
    line: Line, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    words = line(home, Path("-"))
    before = everything_in(home)
    outcome = invoke(*words)
    assert outcome.code == 0
    assert outcome.out
    assert everything_in(home) == before


def test_write_log_onto_wallet_is_refused(home: Path) -> None:
    wallet(home / "w.json", home)
    before = everything_in(home)
    with pytest.raises(OutputError):
        JsonLines(home / "w.json", lambda: None)  # type: ignore[arg-type, return-value]
    assert everything_in(home) == before


def test_init_into_directory_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    outcome = invoke("init", "--out", ".")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --out . is not a file name\nfix: Name the config file")


def test_table_on_pipe_has_no_trailing_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    table = listing(["run", "name"], [["a", "b"], ["longer", ""], ["c", ["of two", "lines"]]])
    show(Result(None, table), as_json=False)
    aside(table)
    printed = capsys.readouterr()
    assert printed.out == printed.err
    lines = printed.out.split("\n")
    assert lines == [line.rstrip() for line in lines]
    assert len(lines) == 6

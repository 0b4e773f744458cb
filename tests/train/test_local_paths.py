"""Test which of the paths that a run names a member opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.base.allowed_locations import TRUSTING, RunAccess
from aftermath.base.errors import Unsuitable
from aftermath.base.outputs import write_mark

MADE = "data tokenize"
OWN = "train 0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home directory with a key, data, and another run's model."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (".ssh", "tokens", "private-model", "own-model"):
        (tmp_path / name).mkdir()
    (tmp_path / ".ssh" / "id_ed25519").write_text("secret")
    (tmp_path / "tokens" / "tokens-00000.bin").write_bytes(b"1234")
    write_mark(tmp_path / "tokens", MADE)
    write_mark(tmp_path / "private-model", "train fedcba9876543210")
    write_mark(tmp_path / "own-model", OWN)
    (tmp_path / "tokens" / "key").symlink_to(tmp_path / ".ssh" / "id_ed25519")
    return tmp_path


def opens(access: RunAccess, label: str | Path) -> Path | None:
    """Return the path that is opened for a label, or None if it is refused."""
    try:
        return access.data_place(str(label))
    except Unsuitable:
        return None


def test_refused_label_error_names_label_and_options() -> None:
    with pytest.raises(
        Unsuitable,
        match=r"the run's data is the local path ~/\.ssh[\s\S]*--data-path DIR, or --data-root DIR",
    ):
        RunAccess().data_place("~/.ssh")


ON_INTERNET = RunAccess(own_maker=OWN)
ON_THIS_MACHINE = RunAccess(own_maker=OWN, on_local_network=True)


@pytest.mark.parametrize("access", [ON_INTERNET, ON_THIS_MACHINE], ids=["internet", "this machine"])
@pytest.mark.parametrize(
    "label", ["~/.ssh/id_ed25519", "~/.ssh", "/etc/passwd", "/etc", "~", "~/tokens/key", "\0"]
)
def test_label_of_foreign_file_is_refused(home: Path, access: RunAccess, label: str) -> None:
    assert opens(access, label) is None
    assert opens(access, label.replace("~", str(home))) is None


def test_label_of_new_directory_opens_on_local_network_only(home: Path) -> None:
    assert opens(ON_THIS_MACHINE, "~/tokens") == home / "tokens"
    assert (
        opens(ON_THIS_MACHINE, "~/tokens/tokens-00000.bin") == home / "tokens" / "tokens-00000.bin"
    )
    assert opens(ON_INTERNET, "~/tokens") is None
    assert opens(ON_INTERNET, "~/private-model") is None
    assert opens(ON_INTERNET, "~/own-model") == home / "own-model"


def test_path_option_overrides_any_label(home: Path) -> None:
    chosen = RunAccess(data=Path("~/tokens"))
    for label in ("~/.ssh/id_ed25519", "x" * 300, "x/" * 3000):
        assert opens(chosen, label) == home / "tokens"
    with pytest.raises(Unsuitable, match="--model-path DIR"):
        chosen.model_place("~/private-model")


@pytest.mark.parametrize(
    ("label", "below"),
    [
        ("tokens", "tokens"),
        ("~/tokens", "tokens"),
        ("/tokens/x.bin", "tokens/x.bin"),
        ("./tokens", "tokens"),
    ],
)
def test_label_is_resolved_below_root(home: Path, label: str, below: str) -> None:
    assert opens(RunAccess(root=home), label) == home / below


@pytest.mark.parametrize("label", ["../.ssh/id_ed25519", "tokens/../../etc", "/", "~", "key", ""])
def test_label_leaving_root_is_refused(home: Path, label: str) -> None:
    assert opens(RunAccess(root=home / "tokens"), label) is None


@pytest.mark.parametrize("label", ["~/.ssh/id_ed25519", "/.ssh", "tokens/.netrc"])
def test_label_of_hidden_file_is_refused_below_root(home: Path, label: str) -> None:
    assert opens(RunAccess(root=home), label) is None


def test_own_checkpoint_precedes_model_option(home: Path) -> None:
    chosen = RunAccess(model=home / "tokens", own_maker=OWN)
    assert chosen.model_place("~/own-model") == home / "own-model"
    assert chosen.model_place("~/private-model") == home / "tokens"


def test_path_written_by_owner_is_opened(home: Path) -> None:
    assert opens(TRUSTING, "~/.ssh/id_ed25519") == home / ".ssh" / "id_ed25519"

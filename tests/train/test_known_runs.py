"""Test that a run id means the run that a member joined first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair

from aftermath.base.errors import Unsuitable
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from aftermath.train.known_runs import KnownRuns
from rules import builders

OWNER, MALLORY = (Keypair.from_seed(bytes([number]) * 32).pubkey() for number in (1, 2))


def _run(**overrides: Any) -> Run:
    values: dict[str, Any] = {"main_authority": bytes(OWNER), "created": 100}
    return replace(builders.run(RunState.WAITING_FOR_MEMBERS), **(values | overrides))


def _known(directory: Path, **network: str) -> KnownRuns:
    return KnownRuns(directory, **({"cluster": "genesis", "program": "program"} | network))


@pytest.mark.parametrize(
    ("changed", "owner", "refusal"),
    [
        ({}, None, None),
        ({"main_authority": bytes(MALLORY), "created": 200}, None, f"another owner, {MALLORY}"),
        ({"created": 200}, None, "by the same owner"),
        ({"created": 200}, str(OWNER), None),
        ({"main_authority": bytes(MALLORY), "created": 200}, str(OWNER), f"belongs to {MALLORY}"),
        ({"main_authority": bytes(MALLORY), "created": 200}, str(MALLORY), None),
        ({}, str(MALLORY), f"belongs to {OWNER}"),
    ],
    ids=["same", "taken", "again", "again-named", "taken-named", "moved", "wrong"],
)
def test_known_run_id_with_another_run_is_refused(
    tmp_path: Path, changed: dict[str, Any], owner: str | None, refusal: str | None
) -> None:
    first = _run()
    run = _run(**changed)
    _known(tmp_path).check(first, None)
    _known(tmp_path).remember(first)
    if refusal is not None:
        with pytest.raises(Unsuitable, match=refusal) as refused:
            _known(tmp_path).check(run, owner)
        new_owner = MALLORY if "main_authority" in changed else OWNER
        assert owner or f"--owner {new_owner}" in str(refused.value.fix)
        return
    _known(tmp_path).check(run, owner)
    _known(tmp_path).remember(run)
    _known(tmp_path).check(run, None)


def test_known_run_when_unchanged_keeps_its_file(tmp_path: Path) -> None:
    _known(tmp_path).remember(_run())
    (file,) = tmp_path.iterdir()
    before = file.stat().st_ino  # a replaced file has another inode
    _known(tmp_path).remember(_run())
    assert file.stat().st_ino == before
    _known(tmp_path).remember(_run(created=200))
    assert file.stat().st_ino != before


@pytest.mark.parametrize("network", [{"cluster": "other"}, {"program": "other"}])
def test_run_of_same_id_on_another_network_is_separate(
    tmp_path: Path, network: dict[str, str]
) -> None:
    _known(tmp_path).remember(_run())
    _known(tmp_path, **network).check(_run(created=1), None)


def test_damaged_record_of_run_is_refused(tmp_path: Path) -> None:
    _known(tmp_path).remember(_run())
    next(tmp_path.iterdir()).write_bytes(b"{}")
    with pytest.raises(Unsuitable, match="is damaged"):
        _known(tmp_path).check(_run(), None)
    _known(tmp_path).check(_run(), str(OWNER))
    _known(tmp_path).remember(_run())
    _known(tmp_path).check(_run(), None)


def test_unwritable_run_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unsuitable, match="cannot"):
        _known(tmp_path / "file").remember(_run())

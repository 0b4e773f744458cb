"""Tests of error codes: each is printed, listed on the page, and leads to a section that exists."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import typer

from aftermath.base.errors import AftermathError, UsageError, code_of
from aftermath.chain.memberships import BOND_ABOVE_LIMIT
from aftermath.chain.refusals import INSUFFICIENT_FUNDS
from aftermath.cli.error_docs import PAGES
from aftermath.cli.error_report import reporting
from aftermath.coordinator.errors import Refused
from aftermath.member.stake import ModelLost
from aftermath.programs import AUTHORIZER_IDL, COORDINATOR_IDL
from aftermath.server.connection import NotAdmitted
from cli.conftest import ROOT
from docs.test_docs import slugs

CODE = re.compile(r'^    code = "([a-z-]+)"$', re.MULTILINE)
NOT_ADMITTED = ("NotAuthorized", "Barred", BOND_ABOVE_LIMIT)
FOUND_HERE = {BOND_ABOVE_LIMIT, INSUFFICIENT_FUNDS, "ProgramNotDeployed"}


@pytest.fixture(scope="module")
def codes() -> set[str]:
    """Return the codes of all error classes, and of errors without a class."""
    sources = (path.read_text() for path in (ROOT / "client/aftermath").rglob("*.py"))
    return {"file", "unexpected"} | {code for text in sources for code in CODE.findall(text)}


@pytest.fixture(scope="module")
def refusals() -> set[str]:
    """Return the codes of the programs' refusals, and of the checks before them."""
    names = {
        error["name"]
        for idl in (COORDINATOR_IDL, AUTHORIZER_IDL)
        for error in json.loads(idl.read_text())["errors"]
    }
    return {Refused(name, "").code for name in names | FOUND_HERE}


def test_error_code_page_lists_exactly_all_codes(codes: set[str], refusals: set[str]) -> None:
    text = (ROOT / "docs/operations.md").read_text().partition("## Error codes")[2]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    listed = {code for row in rows for code in re.findall("`([a-z-]+)`", row)}
    assert listed == codes | {"client-version-mismatch"}
    assert "client-version-mismatch" in refusals
    assert {Refused(name, "").code for name in FOUND_HERE} <= set(re.findall("`([a-z-]+)`", text))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("NotAMember", "not-a-member"),
        ("NotAudited", "not-audited"),
        ("NotAJuror", "not-a-juror"),
        ("P2pKeyZero", "p2p-key-zero"),
        ("RpcIDMismatch", "rpc-id-mismatch"),
        ("Custom6001", "custom6001"),
    ],
)
def test_code_of_error_name_splits_words(name: str, code: str) -> None:
    assert code_of(name) == code


@pytest.mark.parametrize("code", sorted(PAGES))
def test_error_code_page_section_exists(code: str, codes: set[str], refusals: set[str]) -> None:
    assert code in codes | refusals
    page, _, section = PAGES[code].partition("#")
    assert section in slugs(ROOT / page)


@pytest.mark.parametrize(
    ("error", "code", "docs", "exit_code"),
    [
        (AftermathError("Not so.", "Do this."), "failed", "", 1),
        (UsageError("Not so.", "Do this."), "usage", "", 2),
        (
            Refused("ClientVersionMismatch", "Not so."),
            "client-version-mismatch",
            "docs/operations.md#upgrading",
            10,
        ),
        (
            Refused("BondTooLow", "Not so.", "Do this."),
            "bond-too-low",
            "docs/operations.md#what-it-costs",
            1,
        ),
        *(
            (Refused(name, "Not so."), code_of(name), PAGES.get(code_of(name), ""), 11)
            for name in NOT_ADMITTED
        ),
        (NotAdmitted("Not so."), "not-admitted", "docs/operations.md#host-a-run", 11),
        (ModelLost("Not so."), "model-lost", PAGES.get("model-lost", ""), 12),
        (FileNotFoundError(2, "No such file", "x"), "file", "", 1),
        (RuntimeError("?"), "unexpected", "docs/operations.md#troubleshooting", 1),
    ],
)
def test_error_prints_code_and_page(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: str,
    docs: str,
    exit_code: int,
) -> None:
    monkeypatch.chdir(ROOT)
    for as_json in (True, False):
        with pytest.raises(typer.Exit) as ended, reporting(as_json=as_json):
            raise error
        assert ended.value.exit_code == exit_code
        stderr = capsys.readouterr().err
        if as_json:
            error_object = json.loads(stderr)
            assert list(error_object) == ["error", "fix", "code", *(["docs"] if docs else [])]
            assert (error_object["code"], error_object.get("docs", "")) == (code, docs)
        else:
            lines = [line.partition(":")[0] for line in stderr.splitlines()]
            assert lines == [
                "error",
                *(["fix"] if error_object["fix"] else []),
                *(["docs"] if docs else []),
            ]
            assert stderr.endswith(f"docs: {docs}\n") is bool(docs)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_error_page_paths_exist(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    elsewhere: bool,
) -> None:
    monkeypatch.chdir(tmp_path if elsewhere else ROOT)
    with pytest.raises(typer.Exit), reporting(as_json=True):
        raise Refused(
            "BondTooLow",
            "Not so.",
            "Do this, docs/models.md shows how, and not in docs/nothing/at.md",
        )
    error = json.loads(capsys.readouterr().err)
    page = error["fix"].split()[2]
    assert Path(page).samefile(ROOT / "docs/models.md")
    assert error["fix"] == f"Do this, {page} shows how, and not in docs/nothing/at.md"
    file, _, section = error["docs"].partition("#")
    assert Path(file).samefile(ROOT / "docs/operations.md")
    assert section in slugs(Path(file))
    assert Path(file).is_absolute() is elsewhere


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (("-m", "aftermath.demo", "--engine", "mainnet"), "--engine"),
        (("-m", "aftermath.demo", "--bogus"), "--bogus"),
        (("scripts/tokenise.py", "--output", "x", "--bogus"), "--bogus"),
        (("scripts/tokenise.py",), "--output"),
    ],
)
def test_script_with_wrong_options_prints_command_error(
    line: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    module, *words = line[1:] if line[0] == "-m" else line
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(SystemExit) as ended:
        (runpy.run_module if line[0] == "-m" else runpy.run_path)(module, run_name="__main__")
    out, err = capsys.readouterr()
    error, fix = err.splitlines()
    assert (ended.value.code, out) == (2, "")
    assert error.startswith("error: ")
    assert message in error
    call = " ".join(line[:2]) if line[0] == "-m" else line[0]
    assert fix == f"fix: See: python {call} --help"

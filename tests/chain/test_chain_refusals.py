"""Tests of refusals that a person can fix: the error names the run's id and commands that exist."""

from __future__ import annotations

import re
import shlex

import pytest
from solders.pubkey import Pubkey

from aftermath.chain.addresses import run_addresses
from aftermath.chain.failures import TransactionFailed
from aftermath.chain.instructions import CoordinatorInstructions
from aftermath.chain.programs import authorizer_program, coordinator_program, error_tables
from aftermath.chain.refusals import _TEXTS, refused
from aftermath.cli.main import INDEX, load
from aftermath.coordinator.errors import Refused

COORDINATOR = coordinator_program()
AUTHORIZER = authorizer_program()
COMMAND = re.compile(r"aftermath-solana ([^;:]+)")


def refusal_of(name: str, run_id: str) -> Refused:
    """Return the user's error for this error of the coordinator, or else of the authorizer."""
    program = (
        COORDINATOR if name in {error.name for error in COORDINATOR.errors.values()} else AUTHORIZER
    )
    (code,) = [code for code, error in program.errors.items() if error.name == name]
    step = CoordinatorInstructions(COORDINATOR, Pubkey.new_unique()).tick(run_id)
    # errors of the authorizer are also looked up by instruction
    errors = {COORDINATOR.id: program.errors}
    return refused(TransactionFailed({"InstructionError": [0, {"Custom": code}]}), [step], errors)


@pytest.mark.parametrize("name", sorted(_TEXTS))
def test_refusal_names_run_and_existing_commands(name: str) -> None:
    refused = refusal_of(name, "my run")
    assert refused.name == name
    assert not re.search(
        r"[{}]|\bRUN\b|update\(|_update\b|set_paused", refused.message + refused.fix
    )
    assert "the run " not in refused.message
    for line in COMMAND.findall(refused.fix):
        command, *words = shlex.split(line)
        assert command in INDEX
        if "--run-id" in words:
            parser = load(command)
            # some only read
            signed = ["-w", "x"] if any("-w" in option.opts for option in parser.params) else []
            assert parser.make_context(command, [*words, *signed]).params["run_id"] == "my run"


def test_withdraw_of_kept_seat_says_what_tick_loses() -> None:
    assert (
        "gives up steps that a stopped member saved: aftermath" in refusal_of("StillBound", "a").fix
    )


def test_refusal_without_user_text_keeps_program_message() -> None:
    errors = error_tables(COORDINATOR, AUTHORIZER)[COORDINATOR.id]
    (message,) = [error.message for error in errors.values() if error.name == "BadParticipation"]
    assert refusal_of("BadParticipation", "mine").message == message


def test_refusal_run_name_follows_from_account() -> None:
    run_addresses(COORDINATOR.id, "other")
    assert refusal_of("StepsDone", "mine").message.startswith("run mine ")

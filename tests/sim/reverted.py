"""Mends of what seeds have found, each taken back: who calls one of these has members, or a program, as they were."""

from __future__ import annotations

import pytest
from solders.account import Account
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from aftermath.chain.views import parse_run, run_account
from aftermath.localnet.runtime import AccountState, Outcome, Runtime
from aftermath.member.rounds import Rounds
from aftermath.rules.accounts import Run
from aftermath.rules.state import ModelSource, RunState

_NOT_RUNNING = (RunState.WAITING_FOR_MEMBERS, RunState.PAUSED, RunState.FINISHED)


def an_epoch_is_over_when_the_next_has_not_begun(patch: pytest.MonkeyPatch) -> None:
    """Whatever the chain stores by then (`member/rounds.py`)."""

    def ended(self: Rounds, run: Run) -> bool:
        just_after = run.epoch == self._epoch + 1 and run.state in _NOT_RUNNING
        return just_after or (run.epoch == self._epoch and run.state is RunState.COOLDOWN)

    patch.setattr(Rounds, "_ended", ended)


def lost_levels_stay_lost(patch: pytest.MonkeyPatch) -> None:
    """The program names a level's newest hash although no member of the epoch holds it (`rules/epoch.rs`)."""
    simulate, layout = Runtime.simulate, run_account()

    def run_of(states: list[AccountState]) -> tuple[Pubkey, Account] | None:
        found = [(key, account) for key, account in states if account is not None]
        return next((state for state in found if bytes(state[1].data[:8]) == layout.discriminator), None)

    def as_it_was(self: Runtime, tx: VersionedTransaction) -> Outcome:
        outcome = simulate(self, tx)
        old, new = run_of(outcome.before), run_of(outcome.after)
        if old is None or new is None or len(old[1].data) != layout.size:
            return outcome
        before, after = parse_run(bytes(old[1].data)), parse_run(bytes(new[1].data))
        begins = before.state is not RunState.WARMUP and after.state is RunState.WARMUP
        if begins and after.levels_lost and after.model_source is ModelSource.PEERS:
            data = bytearray(new[1].data)
            for name in ("level_hashes", "levels_attested"):
                start = layout.offset(name)
                end = start + layout.dtype[name].itemsize
                data[start:end] = old[1].data[start:end]
            data[layout.offset("levels_lost")] = 0
            changed = Account(new[1].lamports, bytes(data), new[1].owner, new[1].executable, new[1].rent_epoch)
            outcome.after[:] = [(key, changed if key == new[0] else account) for key, account in outcome.after]
        return outcome

    patch.setattr(Runtime, "simulate", as_it_was)

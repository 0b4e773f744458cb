"""Count the rounds until audits convict each kind of hostile member, and what audits cost.

OMP_WAIT_POLICY=PASSIVE python benchmarks/hostile_audits.py [--seeds 20] [--keep]
"""

# How it is measured:
# - `audits` has a row per attack. For each seed, a member of a tiny run (fp32, CPU, 30 inner steps)
#   falsifies a share. SparseLoCo with AdamW, with Muon, and DisTrO take turns. Three auditors
#   judge it as members do, in other micro-batches and thread counts (`hostile_work.judge`).
#   `detected` counts the judgements that convict, of `judgements`.
# - These judgements then decide a run of eight established members in the real program
#   (`audit_trials.play`). `rounds_median` and `rounds_worst` count the rounds from the first false
#   result to the conviction, at `PERCENT`; `rounds_median_25` and `rounds_worst_25` at 25 %. None:
#   not within 400 rounds. `audits_worst` is the number of audits of that member.
# - `found_in_20_audits` is the probability that 20 audits find the attack at least once, from the
#   lower limit of the detection rate (95 % confidence).
# - `false_convictions` counts ejected honest members and honest shares of the same runs that an
#   auditor calls false. `seconds` (CPU) and `bytes` are medians of one judgement.
# - `audit_honest` counts judgements of honest shares. They stop after `--honest`, or after
#   `--seconds` of CPU time.
# - `audit_cost` is the cost for a member of the light recipe (`step.MODEL`). A small share and its
#   judgement are measured. `seconds` (CPU, one core) is the judgement of a share of 30 steps of
#   4,096 tokens, which trains as fast. `compute` adds the copies that each round keeps, and is
#   relative to the share. It and `fetched_bytes_per_round` are for one result in 16. `uplink` is
#   relative to a line of 110 Mb/s during the share, and `shortest_round` is the round in seconds
#   that makes it 5 %. `over_results` is relative to the member's result, sent to seven peers.

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aftermath.audit.comparison import AuditVerdict
from aftermath.member.state_chain import StateChain
from aftermath.optim.state_merkle import tree_of
from aftermath.replica.exactness import exact_device
from aftermath.rules.announcements import NOTHING, Commitment, PrivateRoots
from audit_trials import Finds, Trial, play
from hostile_cost import costs, honest_judgements, short
from hostile_work import (
    ATTACKS,
    WAYS,
    Finding,
    findings,
    honest,
    judge,
    members_of,
)
from measure import keep_hostile_audits
from member.result_inbox import commitment_of

PERCENT = 6
OFTEN = 25
"""Percent at which 20 rounds find a member with a probability of 0.99."""
CHEAT = 0
"""Seat of the hostile member."""
LAZY = frozenset({1, 2})
"""Seats of members that vote without working."""


# --- the rows of the table


def attack_row(attack: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the row of an attack that auditors judge."""
    judged: list[list[Finding]] = []
    alarms = 0
    trials: dict[int, list[Trial | None]] = {PERCENT: [], OFTEN: []}
    for seed in seeds:
        members = members_of(seed)
        found = findings(ATTACKS[attack](members), seed)
        judged.append(found)
        honest_found = judge(honest(members.own), WAYS[seed % len(WAYS)], b"honest")
        alarms += honest_found.verdict is AuditVerdict.MISMATCH
        for percent, played in trials.items():
            played.append(_trial(found, _trial_seed(attack, seed), percent))
    flat = [finding for found in judged for finding in found]
    detected = sum(finding.verdict is AuditVerdict.MISMATCH for finding in flat)
    distances = [finding.distance for finding in flat if finding.distance is not None]
    ejected = [trial.ejected for played in trials.values() for trial in played if trial]
    return {
        "attack": attack,
        "seeds": len(seeds),
        "judgements": len(flat),
        "detected": detected,
        "found_in_20_audits": found_in_20_audits(detected, len(flat)),
        "smallest_distance": short(min(distances)) if distances else None,
        **_rounds(trials),
        "false_convictions": alarms + sum(len(seats - {CHEAT}) for seats in ejected),
        "seconds": short(statistics.median(finding.cpu_seconds for finding in flat)),
        "bytes": round(statistics.median(finding.fetched_bytes for finding in flat)),
    }


def _trial_seed(attack: str, seed: int) -> int:
    return list(ATTACKS).index(attack) * 1000 + seed


def _trial(found: Sequence[Finding], seed: int, percent: int) -> Trial | None:
    """Play a run in which the members judge the cheat's results like this. None if none convicts.

    Honest results match, as the honest audits of the same row show.
    """
    if not any(finding.verdict is AuditVerdict.MISMATCH for finding in found):
        return None

    def finds(judging: int, target: int) -> bool | None:
        if target != CHEAT or judging == CHEAT:
            return False
        verdict = found[judging % len(found)].verdict
        return None if verdict is None else verdict is AuditVerdict.MISMATCH

    return play(seed, percent, CHEAT, finds)


def _rounds(trials: dict[int, list[Trial | None]]) -> dict[str, Any]:
    """Return the median and the largest number of rounds and audits. None counts as the largest."""
    rounds = {
        percent: _median_and_worst([trial.rounds if trial else None for trial in played])
        for percent, played in trials.items()
    }
    audits = [trial.audits if trial and trial.rounds else None for trial in trials[PERCENT]]
    return {
        "rounds_median": rounds[PERCENT][0],
        "rounds_worst": rounds[PERCENT][1],
        f"rounds_median_{OFTEN}": rounds[OFTEN][0],
        f"rounds_worst_{OFTEN}": rounds[OFTEN][1],
        "audits_worst": _median_and_worst(audits)[1],
    }


def _median_and_worst(numbers: Sequence[int | None]) -> tuple[float | None, int | None]:
    ordered = sorted(float("inf") if number is None else number for number in numbers)
    median = statistics.median(ordered)
    worst = ordered[-1]
    return (
        None if median == float("inf") else median,
        None if worst == float("inf") else int(worst),
    )


def found_in_20_audits(detected: int, judgements: int) -> float:
    """Return the probability that one of 20 audits finds an attack.

    Of `judgements`, `detected` found it. The rate is the lower end of Wilson's interval, 95 %.
    """
    z = 1.645
    rate = detected / judgements
    spread = z * math.sqrt(rate * (1 - rate) / judgements + (z / judgements) ** 2 / 4)
    lowest = (rate + z * z / (2 * judgements) - spread) / (1 + z * z / judgements)
    return round(1 - (1 - max(0.0, lowest)) ** 20, 4)


def accuser_row(seeds: Sequence[int]) -> dict[str, Any]:
    """Return the row of a member that accuses every honest member it audits."""

    def finds(judging: int, target: int) -> bool | None:
        del target
        return judging == CHEAT

    return {"attack": "accuses honest members"} | _jury_row(seeds, 20_000, finds)


def lazy_row(seeds: Sequence[int]) -> dict[str, Any]:
    """Return the row of two members that audit nothing and acquit everyone.

    Nobody can tell, so its rounds are those until a cheat is convicted next to them.
    """

    def finds(judging: int, target: int) -> bool | None:
        return target == CHEAT and judging != CHEAT and judging not in LAZY

    row = _jury_row(seeds, 21_000, finds)
    cheat = {f"cheat_{name}": row[name] for name in ("rounds_median", "rounds_worst")}
    nothing = dict.fromkeys(("rounds_median", "rounds_worst", "rounds_median_25"), None)
    nothing["rounds_worst_25"] = nothing["audits_worst"] = None
    return {"attack": "votes without working"} | row | nothing | cheat


def shielded_row(seeds: Sequence[int]) -> dict[str, Any]:
    """Return the row of three members that accuse the others and vote with each other."""
    friends = {CHEAT, *LAZY}

    def finds(judging: int, target: int) -> bool | None:
        return judging in friends and target not in friends

    few = seeds[:2]  # nobody is ever ejected, so each takes all rounds
    row = _jury_row(few, 22_000, finds, rounds=60)
    return {"attack": "three of eight accuse the others"} | row


def _jury_row(
    seeds: Sequence[int], first_seed: int, finds: Finds, rounds: int = 400
) -> dict[str, Any]:
    """Return the row of an attack in which only votes matter. Honest judgements cost the jury."""
    trials: dict[int, list[Trial | None]] = {
        percent: [play(first_seed + seed, percent, CHEAT, finds, rounds=rounds) for seed in seeds]
        for percent in (PERCENT, OFTEN)
    }
    found = [judge(honest(members_of(seed).own), WAYS[0], b"jury") for seed in seeds]
    ejected = [trial.ejected for played in trials.values() for trial in played if trial]
    return {
        "seeds": len(seeds),
        **_rounds(trials),
        "false_convictions": sum(len(seats - {CHEAT}) for seats in ejected)
        + sum(finding.verdict is AuditVerdict.MISMATCH for finding in found),
        "seconds": short(statistics.median(finding.cpu_seconds for finding in found)),
        "bytes": round(statistics.median(finding.fetched_bytes for finding in found)),
    }


def old_state_row(seeds: Sequence[int]) -> dict[str, Any]:
    """Return the row of a member that continues from an older state than its last one.

    Witnesses compare the roots of commitments (`StateChain`), so no audit is needed.
    """
    refused = 0
    alarms = 0
    for seed in seeds:
        own = members_of(seed).own
        assert own.earlier is not None
        assert own.earlier.earlier is not None
        first, second, third = (
            tree_of(one.state).root for one in (own.earlier.earlier, own.earlier, own)
        )
        honest_ones = [
            _commitment(0, NOTHING, first, None),
            _commitment(1, first, second, 0),
            _commitment(2, second, third, 1),
        ]
        older = [_commitment(2, first, third, 1), _commitment(2, first, third, 0)]
        chain = StateChain()
        for commitment in honest_ones:
            chain.hear(commitment)
        alarms += sum(chain.fault(commitment) is not None for commitment in honest_ones)
        refused += all(chain.fault(commitment) is not None for commitment in older)
    rounds = 0 if refused == len(seeds) else None
    names = ("rounds_median", "rounds_worst", f"rounds_median_{OFTEN}", f"rounds_worst_{OFTEN}")
    return {
        "attack": "continues from an older state",
        "seeds": len(seeds),
        "judgements": len(seeds),
        "detected": refused,
        **dict.fromkeys(names, rounds),
        "audits_worst": 0,
        "false_convictions": alarms,
        "seconds": 0.0,
        "bytes": 0,
    }


def _commitment(height: int, before: bytes, after: bytes, since: int | None) -> Commitment:
    """Return a commitment of epoch 2 that continues from that of round `since`."""
    place = None if since is None else (2, since)
    roots = PrivateRoots(before, after, place)
    return commitment_of(None, 0, height, epoch=2, private=roots)


def table(seeds: int) -> list[dict[str, Any]]:
    """Return all rows."""
    numbers = range(seeds)
    rows = []
    for attack in ATTACKS:
        rows.append(attack_row(attack, numbers))
        say(rows[-1])
    for make in (old_state_row, lazy_row, accuser_row, shielded_row):
        rows.append(make(numbers))
        say(rows[-1])
    return rows


def say(row: dict[str, Any]) -> None:
    """Print a row, so that a long run shows its progress."""
    print(json.dumps(row), file=sys.stderr, flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "audits": lambda options: table(options.seeds),
    "audit_cost": lambda options: costs(),
    "audit_honest": lambda options: honest_judgements(options.honest, options.seconds),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="runs per attack (default 20)")
    parser.add_argument(
        "--honest", type=int, default=10_000, help="honest judgements at most (default 10000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=3600, help="their CPU seconds at most (default 3600)"
    )
    parser.add_argument(
        "--parts", nargs="*", choices=PARTS, default=list(PARTS), help="default: all"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--keep", action="store_true", help="write them into benchmarks/measured/hostile.json"
    )
    options = parser.parse_args()
    load = os.getloadavg()[0]
    exact_device("cpu")
    torch.set_num_threads(1)
    found = {part: PARTS[part](options) for part in options.parts}
    if options.keep:
        keep_hostile_audits(load, found)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()

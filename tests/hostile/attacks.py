"""Attacks by name, the rows of the table. An attack may combine several behaviours."""

from __future__ import annotations

from hostile import protocol_attacks, result_attacks
from hostile.hostile_member import Behaviour

NONE = "none"

ATTACKS: dict[str, tuple[type[Behaviour], ...]] = {
    NONE: (Behaviour,),
    "results under another hash": (result_attacks.WrongHash,),
    "oversized results": (result_attacks.Oversized,),
    "truncated results": (result_attacks.Truncated,),
    "garbage under its right hash": (result_attacks.Garbage,),
    "votes that are not numbers": (result_attacks.NotANumber,),
    "places out of range": (result_attacks.OutOfRange,),
    "levels under other names": (result_attacks.WrongLevel,),
    "levels of a smaller tier than declared": (result_attacks.SmallerTier,),
    "results of others' shares": (result_attacks.AnotherShare,),
    "levels unsorted and twice": (result_attacks.Respelled,),
    "deeply nested messages": (result_attacks.Nested,),
    "replays of other rounds and runs": (result_attacks.Replays,),
    "silence": (result_attacks.Silent,),
    "two results to all": (result_attacks.TwoResults,),
    "another result to some": (result_attacks.ResultForSome,),
    "another result to each": (result_attacks.ResultForEach,),
    "a level withheld": (result_attacks.WithholdsLevel,),
    "results withheld from one peer": (result_attacks.WithholdsFromOne,),
    "late just under the limit": (result_attacks.Late,),
    "late level by level and never a witness": (
        result_attacks.LateByLevel,
        protocol_attacks.NeverWitness,
    ),
    "copies of others' results": (result_attacks.Copies,),
    "copies of revealed results": (result_attacks.CopiesRevealed,),
    "copies of revealed results after closing early": (
        protocol_attacks.ClosesEarly,
        result_attacks.CopiesRevealed,
    ),
    "closed early": (protocol_attacks.ClosesEarly,),
    "results never revealed": (result_attacks.NeverReveals,),
    "results revealed to one peer": (result_attacks.RevealsToOne,),
    "never ready": (protocol_attacks.NeverReady,),
    "never a witness": (protocol_attacks.NeverWitness,),
    "false witness": (protocol_attacks.FalseWitness,),
    "false attestation of the model": (protocol_attacks.FalseAttest,),
    "false attestations of a newcomer": (protocol_attacks.AttestsUnasked,),
    "false offers of the model": (protocol_attacks.FalseOffers,),
    "one model to some and another to others": (protocol_attacks.InconsistentOffers,),
    "early ticks": (protocol_attacks.EarlyTicks,),
    "false health checks": (protocol_attacks.FalseHealthChecks,),
    "leaving and joining": (protocol_attacks.LeavesAndRejoins,),
    "restarting": (protocol_attacks.Restarts,),
    "highest declared speed, then silence": (protocol_attacks.GreatSpeed, result_attacks.Silent),
    "flood of announcements": (protocol_attacks.FloodsAnnouncements,),
    "flood of streams": (protocol_attacks.FloodsStreams,),
    "flood of connections": (protocol_attacks.FloodsConnections,),
    "slow streams (Slowloris)": (protocol_attacks.SlowLoris,),
}


def provable(attack: str) -> bool:
    """Return whether every honest member can prove the fault, so that the attacker must lose its
    seat.
    """
    return any(kind.provable for kind in ATTACKS[attack])


def blamed_for(attack: str) -> str:
    """Return the text by which honest members must report the attack, or an empty string."""
    return "".join(kind.blamed_for for kind in ATTACKS[attack])


def newcomers_from(attack: str) -> str:
    """Return where an honest newcomer takes the model from, if the attack has one."""
    return next((kind.newcomers_from for kind in ATTACKS[attack] if kind.newcomers_from), "peers")


def epochs(attack: str) -> int:
    """Return the number of epochs in which it takes part. Actions are counted in the last one."""
    return max(kind.epochs for kind in ATTACKS[attack])

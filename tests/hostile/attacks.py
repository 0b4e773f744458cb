"""What hostile members do, by name: the rows of the table. Several behaviours together make one
attack.
"""

from __future__ import annotations

from hostile import lies, misdeeds
from hostile.member import Behaviour

NONE = "none"

ATTACKS: dict[str, tuple[type[Behaviour], ...]] = {
    NONE: (Behaviour,),
    "results under another hash": (lies.WrongHash,),
    "oversized results": (lies.Oversized,),
    "truncated results": (lies.Truncated,),
    "garbage under its right hash": (lies.Garbage,),
    "votes that are no numbers": (lies.NotANumber,),
    "places out of range": (lies.OutOfRange,),
    "levels under other names": (lies.WrongLevel,),
    "levels of a smaller tier than declared": (lies.SmallerTier,),
    "results of others' shares": (lies.AnotherShare,),
    "levels unsorted and twice": (lies.Respelled,),
    "nested beyond reading": (lies.Nested,),
    "replays of other rounds and runs": (lies.Replays,),
    "silence": (lies.Silent,),
    "two results to all": (lies.TwoResults,),
    "another result to some": (lies.ResultForSome,),
    "another result to each": (lies.ResultForEach,),
    "a level withheld": (lies.WithholdsLevel,),
    "one peer shunned": (lies.WithholdsFromOne,),
    "late just under the limit": (lies.Late,),
    "late level by level and never a witness": (lies.LateByLevel, misdeeds.NeverWitness),
    "copies of others' results": (lies.Copies,),
    "copies of opened results": (lies.CopiesWhatIsOpened,),
    "copies by one closed early": (misdeeds.ClosesEarly, lies.CopiesWhatIsOpened),
    "closed early": (misdeeds.ClosesEarly,),
    "results never opened": (lies.NeverOpens,),
    "results opened to one": (lies.OpensToOne,),
    "never ready": (misdeeds.NeverReady,),
    "never a witness": (misdeeds.NeverWitness,),
    "false witness": (misdeeds.FalseWitness,),
    "false attestation of the model": (misdeeds.FalseAttest,),
    "false attestations of a newcomer": (misdeeds.AttestsUnasked,),
    "false offers of the model": (misdeeds.FalseOffers,),
    "one model to some and another to others": (misdeeds.TwoFacedOffers,),
    "early ticks": (misdeeds.EarlyTicks,),
    "false health checks": (misdeeds.FalseHealthChecks,),
    "leaving and joining": (misdeeds.Churns,),
    "restarting": (misdeeds.Restarts,),
    "the greatest speed and silence": (misdeeds.GreatSpeed, lies.Silent),
    "flood of announcements": (misdeeds.FloodsAnnouncements,),
    "flood of streams": (misdeeds.FloodsStreams,),
    "flood of connections": (misdeeds.FloodsConnections,),
    "streams that drip": (misdeeds.SlowLoris,),
}


def provable(attack: str) -> bool:
    """Whether every honest member can see its fault, so that it must lose its place."""
    return any(kind.provable for kind in ATTACKS[attack])


def blamed_for(attack: str) -> str:
    """What every honest member says of it; nothing if it need not."""
    return "".join(kind.blamed_for for kind in ATTACKS[attack])


def newcomers_from(attack: str) -> str:
    """Return where an honest newcomer takes the model from, if the attack has one."""
    return next((kind.newcomers_from for kind in ATTACKS[attack] if kind.newcomers_from), "peers")


def epochs(attack: str) -> int:
    """For how many epochs it takes part; what it does is looked at in the last."""
    return max(kind.epochs for kind in ATTACKS[attack])

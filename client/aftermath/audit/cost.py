"""What audits cost a member, on average, in a run whose members are all established."""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.audit.claim import blocks_to_fetch, drawn_residual_blocks, start_blocks
from aftermath.optim.engine import outline_of
from aftermath.optim.schema import Schema
from aftermath.rules.audits import MAX_DRAWN, MIN_JURY
from aftermath.rules.run import Config

AUDIT_OVER_SHARE = 1.8
"""Time of an audit over that of the audited share (`audit_over_share` in audits.json)."""


@dataclass(frozen=True)
class AuditCost:
    """The cost of audits without accusations. An accusation costs the auditor a second replay."""

    compute: float
    """Time for the audits of others, over that for this member's own shares."""
    upload_bytes: tuple[int, ...]
    """Bytes a round that a member of each tier sends to auditors, on average."""

    @property
    def in_words(self) -> str:
        """Return the cost as part of a sentence."""
        sent = ", ".join(f"{tier}: {size / 1e6:.2f}" for tier, size in enumerate(self.upload_bytes))
        return f"{self.compute:.0%} more training, and MB sent a round by tier: {sent}"


def audit_cost(schema: Schema, rules: Config, members: int) -> AuditCost | None:
    """Return the cost of audits to one of `members` members, or None if nothing is audited."""
    if not rules.verification_percent or members <= MIN_JURY:
        return None
    drawn = min(rules.verification_percent / 100 * members, MAX_DRAWN // 2) / members
    return AuditCost(
        drawn * AUDIT_OVER_SHARE,
        tuple(
            round(drawn * bytes_of_an_audit(schema, tier, members))
            for tier in range(schema.state.tiers)
        ),
    )


def bytes_of_an_audit(schema: Schema, tier: int, members: int) -> int:
    """Return the bytes that a member serves of its states, without proofs, if it is audited once.

    The auditor fetches parts of two states. All others ask for the drawn blocks of the residual.
    """
    outline = outline_of(schema, tier)
    sizes = [outline.place(index).size for index in range(outline.count)]
    sample = drawn_residual_blocks(outline, bytes(8))
    before = start_blocks(outline, schema, sample)
    after = blocks_to_fetch(outline, schema.results, sample)
    fetched = sum(sizes[index] for index in [*before, *after])
    return fetched + (members - 1) * sum(sizes[index] for index in sample)

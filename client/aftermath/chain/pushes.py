"""What of a run's state a websocket is believed for by itself.

Decided: who has attested the running round so far, that the next one's seed is drawn, and that something else has
changed, which is then read anew. Whatever else a push says (another state of the run, another round or epoch, what a
round came to, another config) may end a member, cost it its place or its optimizer's state, have it apply other results
than the others do, or sign one of a round that there is not. So such a push only has nodes asked at once.
"""

from __future__ import annotations

from dataclasses import replace

from aftermath.rules.run import Run


def is_believed(before: Run, pushed: Run) -> bool:
    """Whether a push differs from what is known in nothing for which nodes have to be asked."""
    return _without_news(pushed) == _without_news(before)


def _without_news(run: Run) -> Run:
    running = replace(run.current, attested=0, attestations=0)
    rounds = tuple(running if place == run.head else one for place, one in enumerate(run.rounds))
    return replace(run, seq=0, model_seq=0, members_seq=0, seed_slot=0, next_seed=0, rounds=rounds)

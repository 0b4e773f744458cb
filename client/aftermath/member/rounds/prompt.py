"""Sample text that the model writes while it is trained.

Tokens are written one by one after this member's share is trained, so the next round waits for one
token at most. A text may take several rounds while the weights change. It is reported in full, with
the step of its last token.
"""

from __future__ import annotations

from aftermath.base.concurrency import Worker
from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.member.feed import RunFeed
from aftermath.model.generate import generate
from aftermath.model.json_documents import CheckpointError
from aftermath.model.text import Prompt
from aftermath.replica.replica import Replica

_TEMPERATURE = 0.6


class Continuations:
    """Continues one member's prompt, again and again."""

    def __init__(self, prompt: Prompt, feed: RunFeed, events: Events, compute: Worker) -> None:
        self._prompt = prompt
        self._feed = feed
        self._events = events
        self._compute = compute
        self._written: list[int] = []
        self._failed = False

    async def run(self, replica: Replica, epoch: int, height: int, step: int) -> None:
        """Write until the run is no longer in that round."""
        feed = self._feed
        if self._failed:
            return
        while (
            feed.run.epoch == epoch
            and feed.run.state.training
            and feed.run.current.height == height
        ):
            token = await self._compute(lambda: self._next(replica))
            if token is not None:
                self._written.append(token)
            if token is None or len(self._written) == self._prompt.tokens:
                written, self._written = self._written, []
                await self._report(written, step)
                return

    async def _report(self, written: list[int], step: int) -> None:
        try:
            text = await self._compute(lambda: self._prompt.continued(written))
        except CheckpointError as error:
            self._failed = True
            self._events.emit(event_types.Warning(message=f"sample texts stopped: {error.message}"))
            return
        self._events.emit(event_types.Sample(step=step, prompt=self._prompt.text, text=text))

    def _next(self, replica: Replica) -> int | None:
        """Return the next token, None at the end of the text."""
        # Temperature 0.6 (as upstream), with a seed per token: a small model's likeliest tokens
        # repeat.
        generated = generate(
            replica.model,
            self._prompt.ids + self._written,
            new_tokens=1,
            temperature=_TEMPERATURE,
            seed=len(self._written),
            vocab_size=self._prompt.tokenizer.vocab_size,
        )
        return generated.ids[0] if generated.ids else None

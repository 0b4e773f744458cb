"""`generate`: text from any tier of a checkpoint, with a smaller tier as draft."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.present import Result
from aftermath.rules.limits import MAX_LEVELS

TIER = "Tier that writes; 0 is the whole model. Without it the tier that the checkpoint holds."
DRAFT_TOKENS = 4
DRAFT = "A smaller tier that guesses ahead; the text stays the same, and takes fewer passes of --tier."


@command("generate", example='aftermath-solana generate --model runs/lab/checkpoint --prompt "def " --tokens 200')
def generate(
    model: Annotated[Path, typer.Option(help="Checkpoint directory, with its tokenizer.json.")],
    prompt: Annotated[str, typer.Option(help="What the text begins with.")],
    tier: Annotated[int | None, typer.Option(min=0, max=MAX_LEVELS - 1, help=TIER)] = None,
    tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Tokens to write at most.")] = 100,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=100.0, help="0 takes the likeliest token, 1 draws as the model says.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the drawing.")] = 0,
    draft_tier: Annotated[int | None, typer.Option(min=1, max=MAX_LEVELS - 1, help=DRAFT)] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(min=1, max=64, help=f"Tokens that it guesses at a time; else {DRAFT_TOKENS}.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:X.")] = "auto",
) -> Result:
    """Write text with a model, or with a tier of it.

    With --json also how many passes of the model it took, how many guesses of the draft were right, and the time.
    """
    _check_draft(tier or 0, draft_tier, draft_tokens)

    import time

    from aftermath.model.checkpoint import load, load_config, tier_of
    from aftermath.model.generate import Draft
    from aftermath.model.generate import generate as write
    from aftermath.model.network import LanguageModel
    from aftermath.model.text import Prompt, load_tokenizer
    from aftermath.replica.replica import pick_device

    place = model.expanduser()
    config, tokenizer, chosen = load_config(place), load_tokenizer(place), pick_device(device)
    begun = Prompt(prompt, tokens, tokenizer)
    begun.check(config.vocab_size)

    def of_tier(number: int) -> LanguageModel:
        return config.build(number, load(place, number)).to(chosen)

    large = of_tier(tier_of(place, tier))
    draft = Draft(of_tier(draft_tier), draft_tokens or DRAFT_TOKENS) if draft_tier is not None else None
    started = time.perf_counter()
    said = write(
        large,
        begun.ids,
        new_tokens=tokens,
        temperature=temperature,
        seed=seed,
        vocab_size=tokenizer.vocab_size,
        draft=draft,
    )
    text = begun.continued(said.ids)
    data = {
        "text": text,
        "tokens": len(said.ids),
        "passes": said.passes,
        "guessed": said.guessed,
        "taken": said.taken,
        "seconds": round(time.perf_counter() - started, 4),
    }
    return Result(data, prompt + text)


def _check_draft(tier: int, draft_tier: int | None, draft_tokens: int | None) -> None:
    """Raises UsageError for a draft that cannot be."""
    if draft_tokens is not None and draft_tier is None:
        raise UsageError(
            "--draft-tokens means a draft, and there is none", "Pass --draft-tier as well, or leave it out"
        )
    if draft_tier is not None and draft_tier <= tier:
        raise UsageError(f"tier {draft_tier} is no draft for tier {tier}", "Name a smaller one, whose number is larger")

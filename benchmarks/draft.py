"""Measure what a small tier gains as a draft model: `generate` with and without --draft-tier.

python benchmarks/draft.py [--json]
"""

# How it is measured:
# - The models are trained: the arm `mixed` of unequal-kinds.toml, seed 0, whose tiers are cut by
#   width or by layers. It trains again here, for a minute of a core each, because weights are not
#   kept with the figures.
# - Prompts are the beginnings of held-out text. All written text fits into the window, where a
#   draft guesses.
# - The text with a draft must be the one without, token by token, or there is no figure.
# - Seconds are CPU time with one thread, the best of three in turns, as in codec.py. `over_alone`
#   is tokens per second with the draft over those without: above 1 the draft pays.
# - `taken` is the fraction of guessed tokens that were right.
# - `fewer_passes` is the reduction of the large tier's passes: `over_alone` if a draft cost
#   nothing and several tokens took no longer than one.
# - `at_most` is the same for a model of GPT-2's size whose draft is always right. Hidden units
#   beyond tier 2 add nothing there, so all tiers agree and each has its real cost. It is what
#   size could give, not what a trained model gives.

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aftermath.lab.resolve_recipe import recipe_of
from aftermath.lab.setup import start
from aftermath.lab.training_loop import TrainingLoop
from aftermath.model.architectures import config_of
from aftermath.model.generate import Continuation, Draft, generate
from aftermath.model.initial_weights import init_weights
from aftermath.model.levels import prefix
from aftermath.model.network import LanguageModel
from arms import Training, arms, prepare, settings_of
from codec import GPT2
from distro import best

KIND = Path(__file__).with_name("unequal-kinds.toml")
ARM = "mixed"
SEED = 0
CUTS = {"width": "0.2M-width", "depth": "0.2M-depth"}
"""How tiers are cut, and the model size."""
PROMPTS = 8
PROMPT_TOKENS = 64
NEW_TOKENS = 64
GUESSES = 4
TIERS = (0, 1, 2)
DRAWN = {"greedy": 0.0, "drawn": 0.8}
"""Temperatures."""

Models = Mapping[int, LanguageModel]
"""The trained models by tier."""


def training(size: str) -> Training:
    """Return the training of the models that write."""
    (arm,) = (arm for arm in arms(KIND) if arm.name == ARM)
    return next(one for one in arm.trainings if (one.size, one.seed) == (size, SEED))


def trained(one: Training, root: Path) -> tuple[Models, list[list[int]]]:
    """Train, and return all tiers and beginnings of held-out text."""
    recipe = recipe_of(settings_of(one, prepare(root, one.size, one.seed)))
    begun = start(recipe, torch.device("cpu"))
    TrainingLoop(recipe, begun, lambda _: None, None, recipe.steps).run()
    assert begun.held_out is not None
    return begun.trainer.models(), begun.held_out[:PROMPTS, :PROMPT_TOKENS].tolist()


def agreeing(model: Mapping[str, object]) -> Models:
    """Return untrained tiers, cut by width, that give equal outputs: weights beyond the smallest
    tier are zero.
    """
    config = config_of(model)
    small = init_weights(config, SEED, max(TIERS))

    def filled(name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = torch.zeros(shape)
        tensor[prefix(small[name].shape)] = small[name]
        return tensor

    return {
        tier: config.build(
            tier,
            {name: filled(name, shape) for name, shape in config.parameter_shapes(tier).items()},
        )
        for tier in TIERS
    }


def written(
    models: Models, prompts: Sequence[Sequence[int]], temperature: float, draft: Draft | None
) -> list[Continuation]:
    """Return tier 0's continuation of each prompt."""
    return [
        generate(
            models[0],
            prompt,
            new_tokens=NEW_TOKENS,
            temperature=temperature,
            seed=seed,
            draft=draft,
        )
        for seed, prompt in enumerate(prompts)
    ]


def compared(
    models: Models, prompts: Sequence[Sequence[int]], temperature: float
) -> dict[str, Any]:
    """Return tokens per second of tier 0 alone, and with every smaller tier as its draft.

    Raises AssertionError if a draft changes the text.
    """
    drafts = {tier: Draft(model, GUESSES) for tier, model in sorted(models.items()) if tier}
    write = partial(written, models, prompts, temperature)
    alone = write(None)
    found: dict[int, list[Continuation]] = {tier: write(draft) for tier, draft in drafts.items()}
    for tier, texts in found.items():
        assert [text.ids for text in texts] == [text.ids for text in alone], (
            f"tier {tier} changes what is written"
        )
    tokens = sum(len(text.ids) for text in alone)
    first, *others = best(
        *(partial(write, draft) for draft in (None, *drafts.values())),
        repeats=3,
        clock=time.process_time,
    )
    return {
        "tokens": tokens,
        "alone_tokens_per_s": round(tokens / first, 1),
        "by_draft": {
            str(tier): _against(alone, found[tier], first, seconds)
            for tier, seconds in zip(drafts, others, strict=True)
        },
    }


def _against(
    alone: Sequence[Continuation],
    drafted: Sequence[Continuation],
    alone_seconds: float,
    seconds: float,
) -> dict[str, float]:
    """Return the speedup by the draft, and the fraction of its tokens that are accepted."""
    guessed = sum(text.guessed for text in drafted)
    return {
        "tokens_per_s": round(sum(len(text.ids) for text in drafted) / seconds, 1),
        "over_alone": round(alone_seconds / seconds, 3),
        "taken": round(sum(text.taken for text in drafted) / guessed, 4) if guessed else 0.0,
        "fewer_passes": round(
            sum(text.passes for text in alone) / sum(text.passes for text in drafted), 3
        ),
    }


def measure() -> dict[str, Any]:
    """Return everything this benchmark reports."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "guesses_at_a_time": GUESSES,
        "prompts": PROMPTS,
        "new_tokens": NEW_TOKENS,
    }
    with tempfile.TemporaryDirectory() as root:
        for cut, size in CUTS.items():
            models, prompts = trained(training(size), Path(root))
            found[cut] = {"parameters": _parameters(models)} | {
                how: compared(models, prompts, temperature) for how, temperature in DRAWN.items()
            }
    models = agreeing(GPT2)
    return found | {
        "at_most": {"parameters": _parameters(models)} | compared(models, prompts[:1], 0.0)
    }


def _parameters(models: Models) -> dict[str, int]:
    return {
        str(tier): sum(tensor.numel() for tensor in model.parameters())
        for tier, model in models.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of lines"
    )
    as_json = parser.parse_args().json
    report = measure()
    print(
        json.dumps(report, indent=1)
        if as_json
        else "\n".join(f"{name}: {value}" for name, value in report.items())
    )


if __name__ == "__main__":
    main()

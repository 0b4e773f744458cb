"""`eval` and `generate`: ask a checkpoint questions, or let it write text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.present import Result
from aftermath.evals.eval_options import DOCS
from aftermath.rules.limits import MAX_LEVELS

TASKS = "Comma-separated tasks: source-choice, or tasks or YAML files of the LM Evaluation Harness (the extra `eval`)."
TIER = "Tier to evaluate; 0 is the whole model. By default the tier that the checkpoint holds."


@command(
    "eval", example="aftermath-solana eval runs/lab/checkpoint --tasks source-choice --max-docs 200"
)
def eval(  # the command's name
    checkpoint: Annotated[
        Path, typer.Argument(help="Checkpoint directory, with its tokenizer.json.")
    ],
    tasks: Annotated[str, typer.Option(help=TASKS)] = "source-choice",
    tier: Annotated[int | None, typer.Option(min=0, max=MAX_LEVELS - 1, help=TIER)] = None,
    fewshot: Annotated[int, typer.Option(min=0, max=64, help="Examples before each question.")] = 0,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Seed for the choice of questions.")
    ] = 0,
    max_docs: Annotated[int, typer.Option(min=1, help="Maximum questions per task.")] = DOCS,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:X.")] = "auto",
) -> Result:
    """Evaluate a checkpoint on named tasks.

    source-choice asks which of four pieces of Python source continues another. It needs no network,
    and random answers score 0.25. The same options and Python version give the same scores. For
    tasks of the harness, a text begins with the bos_token of tokenizer_config.json, else with the
    eos_token, as for the harness's own Hugging Face models.
    """
    from dataclasses import asdict

    from aftermath.evals.eval_options import eval_request
    from aftermath.evals.likelihood import asked_of
    from aftermath.evals.suite import check_known, evaluate, lines
    from aftermath.model.checkpoint import load, load_config, tier_of
    from aftermath.model.text import check_vocabulary, load_tokenizer
    from aftermath.replica.replica import pick_device

    request = eval_request(tasks, fewshot, seed, max_docs)
    check_known(request)
    directory = checkpoint.expanduser()
    config = load_config(directory)
    tokenizer = load_tokenizer(directory)
    torch_device = pick_device(device)
    check_vocabulary(tokenizer, config.vocab_size)
    chosen_tier = tier_of(directory, tier)
    model = config.build(chosen_tier, load(directory, chosen_tier)).to(torch_device)
    scores = evaluate(asked_of(model), tokenizer, config.max_position_embeddings, request)
    return Result({"tier": chosen_tier, "scores": [asdict(one) for one in scores]}, lines(scores))


WRITING_TIER = (
    "Tier that generates; 0 is the whole model. By default the tier that the checkpoint holds."
)
DRAFT_TOKENS = 4
DRAFT = (
    "Smaller tier that drafts tokens for --tier. The text is the same, with fewer passes of --tier."
)


@command(
    "generate",
    example='aftermath-solana generate --model runs/lab/checkpoint --prompt "def " --tokens 200',
)
def generate(
    model: Annotated[Path, typer.Option(help="Checkpoint directory, with its tokenizer.json.")],
    prompt: Annotated[str, typer.Option(help="Start of the text.")],
    tier: Annotated[int | None, typer.Option(min=0, max=MAX_LEVELS - 1, help=WRITING_TIER)] = None,
    tokens: Annotated[
        int, typer.Option(min=1, max=100_000, help="Maximum tokens to generate.")
    ] = 100,
    temperature: Annotated[
        float,
        typer.Option(
            min=0.0, max=100.0, help="0 takes the likeliest token. 1 samples from the model."
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed for sampling.")] = 0,
    draft_tier: Annotated[int | None, typer.Option(min=1, max=MAX_LEVELS - 1, help=DRAFT)] = None,
    draft_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=64, help=f"Tokens per draft. By default {DRAFT_TOKENS}."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:X.")] = "auto",
) -> Result:
    """Generate text with a checkpoint, or with a tier of it.

    With --json also prints the number of passes, how many drafted tokens were right, and the time.
    """
    _check_draft(tier or 0, draft_tier, draft_tokens)

    import time

    from aftermath.model.checkpoint import load, load_config, tier_of
    from aftermath.model.generate import Draft
    from aftermath.model.generate import generate as write
    from aftermath.model.network import LanguageModel
    from aftermath.model.text import Prompt, load_tokenizer
    from aftermath.replica.replica import pick_device

    directory = model.expanduser()
    config = load_config(directory)
    tokenizer = load_tokenizer(directory)
    torch_device = pick_device(device)
    start = Prompt(prompt, tokens, tokenizer)
    start.check(config.vocab_size)

    def load_tier(tier_number: int) -> LanguageModel:
        return config.build(tier_number, load(directory, tier_number)).to(torch_device)

    large = load_tier(tier_of(directory, tier))
    draft = (
        Draft(load_tier(draft_tier), draft_tokens or DRAFT_TOKENS)
        if draft_tier is not None
        else None
    )
    started = time.perf_counter()
    generated = write(
        large,
        start.ids,
        new_tokens=tokens,
        temperature=temperature,
        seed=seed,
        vocab_size=tokenizer.vocab_size,
        draft=draft,
    )
    text = start.continued(generated.ids)
    data = {
        "text": text,
        "tokens": len(generated.ids),
        "passes": generated.passes,
        "guessed": generated.guessed,
        "taken": generated.taken,
        "seconds": round(time.perf_counter() - started, 4),
    }
    return Result(data, prompt + text)


def _check_draft(tier: int, draft_tier: int | None, draft_tokens: int | None) -> None:
    """Raise UsageError for draft options that contradict others."""
    if draft_tokens is not None and draft_tier is None:
        raise UsageError(
            "--draft-tokens needs --draft-tier",
            "Pass --draft-tier too, or leave out --draft-tokens",
        )
    if draft_tier is not None and draft_tier <= tier:
        raise UsageError(
            f"--draft-tier {draft_tier} is not smaller than tier {tier}",
            "Choose a larger number: larger numbers are smaller tiers",
        )

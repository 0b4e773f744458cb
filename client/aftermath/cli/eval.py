"""`eval`: what a checkpoint can do, by named tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.present import Result
from aftermath.evals.eval_options import DOCS
from aftermath.rules.limits import MAX_LEVELS

TASKS = (
    "Tasks, with commas between them: source-choice, or names or YAML files of the LM Evaluation Harness (the extra "
    "`eval`)."
)
TIER = "Tier to ask; 0 is the whole model. Without it the tier that the checkpoint holds."


@command("eval", example="aftermath-solana eval runs/lab/checkpoint --tasks source-choice --max-docs 200")
def eval(  # the command's name
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint directory, with its tokenizer.json.")],
    tasks: Annotated[str, typer.Option(help=TASKS)] = "source-choice",
    tier: Annotated[int | None, typer.Option(min=0, max=MAX_LEVELS - 1, help=TIER)] = None,
    fewshot: Annotated[int, typer.Option(min=0, max=64, help="Examples before each question.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of the choice of questions.")] = 0,
    max_docs: Annotated[int, typer.Option(min=1, help="Questions of each task at most.")] = DOCS,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:X.")] = "auto",
) -> Result:
    """Ask a model the questions of named tasks.

    source-choice asks which of four pieces of Python source goes on from another; it needs no network, and guessing is
    right in one of four. Equal options and an equal Python give equal figures. Tasks of the harness get the tokens that
    its own model for Hugging Face gives them: before a text stands the bos_token of tokenizer_config.json, else the
    eos_token.
    """
    from dataclasses import asdict

    from aftermath.evals.eval_options import wanted
    from aftermath.evals.likelihood import asked_of
    from aftermath.evals.suite import check_known, evaluated, lines
    from aftermath.model.checkpoint import load, load_config, tier_of
    from aftermath.model.text import check_vocabulary, load_tokenizer
    from aftermath.replica.replica import pick_device

    wish = wanted(tasks, fewshot, seed, max_docs)
    check_known(wish)
    place = checkpoint.expanduser()
    config, tokenizer, chosen = load_config(place), load_tokenizer(place), pick_device(device)
    check_vocabulary(tokenizer, config.vocab_size)
    asked = tier_of(place, tier)
    model = config.build(asked, load(place, asked)).to(chosen)
    scores = evaluated(asked_of(model), tokenizer, config.max_position_embeddings, wish)
    return Result({"tier": asked, "scores": [asdict(one) for one in scores]}, lines(scores))

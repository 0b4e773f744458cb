"""Everything a member may choose when it trains: one class, from which the command line takes defaults and help.

Nothing here changes the run's arithmetic; whatever must be equal on all members lives in the run's config on chain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from aftermath.chain import defaults
from aftermath.evals.wish import DOCS
from aftermath.ranks import MOST_RANKS
from aftermath.replica.arithmetic import COMPILE, PRECISION, Compile, Precision
from aftermath.replica.pass_size import AUTO, MOST, Checkpointing
from aftermath.rules.limits import MAX_LEVELS, RUN_ID_BYTES
from aftermath.train.tier import AUTO_TIER

PROMPT_TOKENS = 64


class TrainSettings(BaseModel):
    """Settings of one `aftermath-solana train` process."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)  # help lists fields and validates none

    # options of other commands too, which describe them (cli/options.py)
    run_id: str = Field(min_length=1, max_length=RUN_ID_BYTES)
    rpc: str = defaults.RPC
    ws_rpc: str | None = None
    rpc_2: str | None = None
    ws_rpc_2: str | None = None
    rpc_3: str | None = None
    ws_rpc_3: str | None = None
    coordinator_program_id: str | None = None
    wallet_private_key_path: Path | None = None
    authorizer: str | None = None
    max_priority_fee: int = Field(defaults.PRIORITY_FEE, ge=0)
    max_bond: int = Field(0, ge=0)
    device: str = "auto"
    matformer_tier: int = Field(0, ge=AUTO_TIER, le=MAX_LEVELS - 1)

    identity_secret_key_path: Path | None = Field(
        None, description="32-byte p2p secret key file; by default the key is derived from the wallet and the run."
    )
    bind_p2p_port: int = Field(0, ge=0, le=65535, description="UDP port for peers; 0 picks a free one.")
    bind_p2p_interface: str | None = Field(None, description="Address to bind for peers; by default all interfaces.")
    iroh_relay: str = Field(
        "auto",
        description="Relay for peers that cannot reach each other: disabled, n0 (theirs), or the URL of one of yours; "
        "auto: n0, but none if the RPC is on this machine.",
    )
    iroh_discovery: Literal["auto", "local", "n0"] = Field(
        "auto",
        description="How peers find each other: n0 on the internet, local by a directory on this machine; "
        "auto: local if the RPC is on this machine.",
    )
    discovery_dir: Path | None = Field(
        None, description="Directory of local discovery; by default one per run under the temporary folder."
    )
    peer: str | None = Field(
        None,
        description="Where peers are, as KEY@HOST:PORT with commas between: for members that nothing else brings "
        "together. Of two members one needs to name the other.",
    )
    max_concurrent_parameter_requests: int = Field(
        8, ge=1, le=64, description="How many tensors are asked from peers at once when the model comes from them."
    )

    data_parallelism: int = Field(
        0,
        ge=0,
        le=MOST_RANKS,
        description="Ranks among which the micro-batches are split, each with its part of the parameters (FSDP2); "
        "0: as many as --device names. With --device cpu so many processes, to try it out.",
    )
    tensor_parallelism: int = Field(
        1,
        ge=1,
        le=MOST_RANKS,
        description="Ranks that compute one micro-batch together, each with its part of every layer (DTensor); not "
        "for models of transformers (HfAuto). The member has as many ranks as the product of the two.",
    )
    threads: int = Field(0, ge=0, description="CPU threads for training; 0 leaves torch's own choice.")
    precision: Precision = Field("auto", description=PRECISION)
    compile: Compile = Field("auto", description=COMPILE)
    grad_accum_in_fp32: bool = Field(
        True, description="Sum gradients in fp32. That is how they are always summed, since weights are fp32."
    )
    micro_batch_size: int = Field(
        8,
        ge=AUTO,
        description="Sequences in one forward pass, of each rank; fewer where the memory of a member's only device "
        f"runs out. auto: as many as fit, up to {MOST}.",
    )
    activation_checkpointing: Checkpointing = Field(
        "auto",
        description="Whether layers keep their inputs alone and are computed twice, for much less memory; auto: when "
        "one sequence does not fit without.",
    )
    matformer_load_strategy: Literal["auto", "sliced", "universal"] = Field(
        "auto",
        description="auto takes a tier's own files if complete, sliced demands them, universal slices the full model.",
    )

    checkpoint_dir: Path | None = Field(None, description="Directory for a checkpoint after every epoch (tier 0 only).")
    hub_repo: str | None = Field(
        None, description="Hugging Face repository that receives checkpoints (needs HF_TOKEN)."
    )
    hub_token: SecretStr | None = Field(None, description="Token for the Hub, read from HF_TOKEN.", exclude=True)
    delete_old_steps: bool = Field(True, description="Delete older checkpoints of this run from the directory.")
    keep_steps: int = Field(3, ge=1, description="How many checkpoints to keep in the directory.")

    logs: Literal["tui", "console", "json"] = Field(
        "console", description="How progress is shown: tui is a screen of tabs, or console where there is no terminal."
    )
    write_log: Path | None = Field(None, description="Also append JSON lines to this file.")
    events_dir: Path | None = Field(
        None,
        description="Directory that receives this member's events as JSON lines, a file for every epoch; the commands "
        "events and plot read it.",
    )
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="TCP port of this machine at which Prometheus finds metrics (/metrics)."
    )
    wandb_project: str | None = Field(
        None,
        description="Project of Weights & Biases that receives this member's figures (the extra `wandb`); the key is "
        "that of `wandb login` or WANDB_API_KEY, and with WANDB_MODE=offline nothing is sent.",
    )
    wandb_run: str | None = Field(
        None, description="Name of this member's run in --wandb-project; else made of run, tier and wallet."
    )
    wandb_group: str | None = Field(None, description="Group of that run; else the run's id.")
    wandb_entity: str | None = Field(None, description="Account or team of --wandb-project; else the key's own.")
    trackio_project: str | None = Field(
        None,
        description="Project of trackio that receives the same figures (the extra `trackio`), on this machine or where "
        "its own variables say.",
    )
    write_gradients_dir: Path | None = Field(
        None,
        description="Directory, one for each member, that receives every result this member applies, its own and its "
        "peers', as a file; decode-gradients reads them.",
    )
    optimizer_state_dir: Path | None = Field(
        None,
        description="Directory that keeps what this member's optimizer alone knows after every epoch (up to 12 bytes "
        "for each parameter, and more where most numbers are sent), so that a member that is started again before the "
        "next one goes on from it.",
    )
    prompt_text: str | None = Field(
        None, description="Text that the model continues while it is trained, in events `sample`; needs its tokenizer."
    )
    prompt_tokens: int | None = Field(
        None, ge=1, le=4096, description=f"Tokens that it adds to --prompt-text; else {PROMPT_TOKENS}."
    )
    eval_tasks: str | None = Field(
        None,
        description="Tasks that the model is asked between rounds, in events `evaluated`, with commas between them: "
        "source-choice, or names or YAML files of the LM Evaluation Harness (the extra `eval`); needs its tokenizer, "
        "and memory for a copy of the weights while a task is asked (4 bytes a parameter of the tier).",
    )
    eval_fewshot: int | None = Field(
        None, ge=0, le=64, description="Examples before each question of --eval-tasks; else 0."
    )
    eval_seed: int | None = Field(None, ge=0, le=2**31 - 1, description="Of the choice of questions; else 0.")
    eval_task_max_docs: int | None = Field(None, ge=1, description=f"Questions of each task at most; else {DOCS}.")
    optim_stats_steps: int = Field(
        0,
        ge=0,
        description="After so many steps each, an event `optimizer` with the norms of what is learnt, sent and kept; "
        "0: never.",
    )

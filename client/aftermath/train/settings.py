"""Everything a member may choose when it trains: one class, from which the command line takes defaults and help.

Nothing here changes the run's arithmetic; whatever must be equal on all members lives in the run's config on chain.

Decided: a plain dataclass, whose fields carry their limits and what help says of them: options are checked when they
are parsed, and help does not wait for a library that would check them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_doc import Doc

from aftermath.base.bounded import Limits
from aftermath.chain import defaults
from aftermath.evals.eval_options import DOCS
from aftermath.ranks import MOST_RANKS
from aftermath.replica.arithmetic import COMPILE, PRECISION, Compile, Precision
from aftermath.replica.pass_size import AUTO, MOST, Checkpointing

PROMPT_TOKENS = 64
MOST_DOWNLOADS = 256


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Settings of one `aftermath-solana train` process."""

    # options of other commands too, which describe them (cli/options.py)
    run_id: str
    rpc: str = defaults.RPC
    ws_rpc: str | None = None
    rpc_2: str | None = None
    ws_rpc_2: str | None = None
    rpc_3: str | None = None
    ws_rpc_3: str | None = None
    coordinator_program_id: str | None = None
    wallet_private_key_path: Path | None = None
    authorizer: str | None = None
    owner: str | None = None
    max_priority_fee: int = defaults.PRIORITY_FEE
    max_bond: int = 0
    device: str = "auto"
    matformer_tier: int = 0
    data_path: Path | None = None
    model_path: Path | None = None
    data_root: Path | None = None
    allow_private_network: bool = False
    hub_token_for: str | None = None

    identity_secret_key_path: Annotated[
        Path | None, Doc("32-byte p2p secret key file; by default the key is derived from the wallet and the run.")
    ] = None
    bind_p2p_port: Annotated[int, Limits(0, 65535), Doc("UDP port for peers; 0 picks a free one.")] = 0
    bind_p2p_interface: Annotated[str | None, Doc("Address to bind for peers; by default all interfaces.")] = None
    iroh_relay: Annotated[
        str,
        Doc(
            "Relay for peers without a direct path: disabled, n0 (public relays), or your own relay's URL; "
            "auto: n0, but none on a local network."
        ),
    ] = "auto"
    iroh_discovery: Annotated[
        Literal["auto", "local", "n0"],
        Doc(
            "How peers find each other: n0 on the internet, local by a directory on this machine; "
            "auto: local on a local network."
        ),
    ] = "auto"
    discovery_dir: Annotated[
        Path | None, Doc("Directory of local discovery; by default one per run under the temporary folder.")
    ] = None
    peer: Annotated[
        str | None,
        Doc(
            "Where peers are, as KEY@HOST:PORT with commas between: for members that nothing else brings "
            "together. Of two members one needs to name the other."
        ),
    ] = None
    max_concurrent_downloads: Annotated[
        int,
        Limits(1, MOST_DOWNLOADS),
        Doc(
            "How many results of other members are fetched at once. Fewer leave more of a slow line to other programs; "
            "results that come too late count for nothing."
        ),
    ] = MOST_DOWNLOADS
    max_concurrent_parameter_requests: Annotated[
        int, Limits(1, 64), Doc("How many tensors are asked from peers at once when the model comes from them.")
    ] = 8

    data_parallelism: Annotated[
        int,
        Limits(0, MOST_RANKS),
        Doc(
            "Ranks among which the micro-batches are split, each with its part of the parameters (FSDP2); "
            "0: as many as --device names. With --device cpu, as many processes, to try it out."
        ),
    ] = 0
    tensor_parallelism: Annotated[
        int,
        Limits(1, MOST_RANKS),
        Doc(
            "Ranks that compute one micro-batch together, each with its part of every layer (DTensor); not "
            "for models of transformers (HfAuto). The member has as many ranks as the product of the two."
        ),
    ] = 1
    threads: Annotated[int, Limits(0), Doc("CPU threads for training; 0 leaves torch's own choice.")] = 0
    precision: Annotated[Precision, Doc(PRECISION)] = "auto"
    compile: Annotated[Compile, Doc(COMPILE)] = "auto"
    grad_accum_in_fp32: Annotated[
        bool, Doc("Sum gradients in fp32. That is how they are always summed, since weights are fp32.")
    ] = True
    micro_batch_size: Annotated[
        int,
        Limits(AUTO),
        Doc(
            "Sequences in one forward pass, of each rank; fewer where the memory of a member's only device "
            f"runs out. auto: as many as fit, up to {MOST}."
        ),
    ] = 8
    activation_checkpointing: Annotated[
        Checkpointing,
        Doc(
            "Whether layers keep their inputs alone and are computed twice, for much less memory; auto: when "
            "one sequence does not fit without."
        ),
    ] = "auto"
    matformer_load_strategy: Annotated[
        Literal["auto", "sliced", "universal"],
        Doc("auto takes a tier's own files if complete, sliced demands them, universal slices the full model."),
    ] = "auto"

    dummy_training_delay_secs: Annotated[
        int,
        Limits(0, 86_400),
        Doc("Seconds to wait before each share, to test a run with a slow member. 0 disables the delay."),
    ] = 0

    checkpoint_dir: Annotated[Path | None, Doc("Directory for a checkpoint after every epoch (tier 0 only).")] = None
    checkpoint_put_links: Annotated[
        str | None,
        Doc(
            "JSON file, or https address that returns one, with a signed link (HTTP PUT) for each file of a "
            "checkpoint. Every checkpoint in --checkpoint-dir is copied there. In an address, {checkpoint} is "
            "replaced by the name of its directory."
        ),
    ] = field(default=None, repr=False)
    hub_repo: Annotated[str | None, Doc("Hugging Face repository that receives checkpoints (needs HF_TOKEN).")] = None
    hub_token: Annotated[str | None, Doc("Token for the Hub, read from HF_TOKEN.")] = field(default=None, repr=False)
    delete_old_steps: Annotated[bool, Doc("Delete older checkpoints of this run from the directory.")] = True
    keep_steps: Annotated[int, Limits(1), Doc("How many checkpoints to keep in the directory.")] = 3

    logs: Annotated[
        Literal["tui", "console", "json"],
        Doc("How progress is shown: tui is a screen of tabs on a terminal, and lines as with console elsewhere."),
    ] = "tui"
    write_log: Annotated[Path | None, Doc("Also append JSON lines to this file.")] = None
    events_dir: Annotated[
        Path | None,
        Doc(
            "Directory that receives this member's events as JSON lines, a file for every epoch; the commands "
            "events and plot read it."
        ),
    ] = None
    metrics_port: Annotated[
        int | None, Limits(1, 65535), Doc("TCP port of this machine at which Prometheus finds metrics (/metrics).")
    ] = None
    wandb_project: Annotated[
        str | None,
        Doc(
            "Project of Weights & Biases that receives this member's figures (the extra `wandb`); the key is "
            "that of `wandb login` or WANDB_API_KEY, and with WANDB_MODE=offline nothing is sent."
        ),
    ] = None
    wandb_run: Annotated[
        str | None, Doc("Name of this member's run in --wandb-project; else made of run, tier and wallet.")
    ] = None
    wandb_group: Annotated[str | None, Doc("Group of that run; else the run's id.")] = None
    wandb_entity: Annotated[str | None, Doc("Account or team of --wandb-project; else the key's own.")] = None
    trackio_project: Annotated[
        str | None,
        Doc(
            "Project of trackio that receives the same figures (the extra `trackio`), on this machine or where "
            "its own variables say."
        ),
    ] = None
    write_gradients_dir: Annotated[
        Path | None,
        Doc(
            "Directory, one for each member, that receives every result this member applies, its own and its "
            "peers', as a file; decode-gradients reads them."
        ),
    ] = None
    optimizer_state_dir: Annotated[
        Path | None,
        Doc(
            "Directory that keeps what this member's optimizer alone knows after every epoch (up to 12 bytes for each "
            "parameter, and more where most numbers are sent), so that a member that is started again before the next "
            "one continues from it."
        ),
    ] = None
    prompt_text: Annotated[
        str | None, Doc("Text that the model continues while it is trained, in events `sample`; needs its tokenizer.")
    ] = None
    prompt_tokens: Annotated[
        int | None, Limits(1, 4096), Doc(f"Tokens that it adds to --prompt-text; else {PROMPT_TOKENS}.")
    ] = None
    eval_tasks: Annotated[
        str | None,
        Doc(
            "Tasks that the model is asked between rounds, in events `evaluated`, with commas between them: "
            "source-choice, or names or YAML files of the LM Evaluation Harness (the extra `eval`); needs its "
            "tokenizer, and memory for a copy of the weights while a task is asked (4 bytes a parameter of the tier)."
        ),
    ] = None
    eval_fewshot: Annotated[
        int | None, Limits(0, 64), Doc("Examples before each question of --eval-tasks; else 0.")
    ] = None
    eval_seed: Annotated[int | None, Limits(0, 2**31 - 1), Doc("Of the choice of questions; else 0.")] = None
    eval_task_max_docs: Annotated[int | None, Limits(1), Doc(f"Questions of each task at most; else {DOCS}.")] = None
    optim_stats_steps: Annotated[
        int,
        Limits(0),
        Doc("Steps between events `optimizer`, which have the norms of what is learnt, sent and kept; 0: never."),
    ] = 0

    @property
    def token_repositories(self) -> tuple[str, ...]:
        """Hub repositories that are read with the token: that of the option, and the one this member writes to."""
        return tuple(name for name in (self.hub_token_for, self.hub_repo) if name)

"""Settings of a member, from which `train` takes its options, limits and help.

No setting changes the run's arithmetic. Values that must be equal on all members are in the run's
config. The class is a plain dataclass, so that `--help` does not import pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_doc import Doc

from aftermath.base.bounded import NumberLimits
from aftermath.chain import defaults
from aftermath.evals.eval_options import DOCS
from aftermath.parallel import MOST_RANKS
from aftermath.replica.options import COMPILE, PRECISION, Compile, Precision
from aftermath.replica.pass_size import AUTO, MOST, Checkpointing

PROMPT_TOKENS = 64
MOST_DOWNLOADS = 256


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Settings of one `aftermath-solana train` process."""

    # cli/options.py describes these, because other commands have them too
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
        Path | None,
        Doc(
            "File with a 32-byte p2p secret key. By default the key is derived from the wallet and the run."
        ),
    ] = None
    bind_p2p_port: Annotated[
        int, NumberLimits(0, 65535), Doc("UDP port for peers. 0 picks a free one.")
    ] = 0
    bind_p2p_interface: Annotated[
        str | None, Doc("Address to bind for peers. By default all interfaces.")
    ] = None
    iroh_relay: Annotated[
        str,
        Doc(
            "Relay for peers without a direct path: disabled, n0 (public relays), or your own "
            "relay's URL. auto: n0, but none on a local network."
        ),
    ] = "auto"
    iroh_discovery: Annotated[
        Literal["auto", "local", "n0"],
        Doc(
            "How peers find each other: n0 on the internet, local in a directory on this machine. "
            "auto: local on a local network, else n0."
        ),
    ] = "auto"
    discovery_dir: Annotated[
        Path | None,
        Doc("Directory for local discovery. By default one per run under the temporary folder."),
    ] = None
    peer: Annotated[
        str | None,
        Doc(
            "Addresses of peers that discovery does not find, as KEY@HOST:PORT, separated by "
            "commas. It is enough if one of two members names the other."
        ),
    ] = None
    max_concurrent_downloads: Annotated[
        int,
        NumberLimits(1, MOST_DOWNLOADS),
        Doc(
            "How many results of other members to fetch at once. Fewer use less of a slow line; late results are lost."
        ),
    ] = MOST_DOWNLOADS
    max_concurrent_parameter_requests: Annotated[
        int,
        NumberLimits(1, 64),
        Doc("How many tensors to request at once when the model comes from peers."),
    ] = 8

    data_parallelism: Annotated[
        int,
        NumberLimits(0, MOST_RANKS),
        Doc(
            "Ranks that split the micro-batches and the parameters (FSDP2). 0: as many as --device "
            "names. With --device cpu they are processes, for tests."
        ),
    ] = 0
    tensor_parallelism: Annotated[
        int,
        NumberLimits(1, MOST_RANKS),
        Doc(
            "Ranks that compute one micro-batch together, each with a part of every layer "
            "(DTensor). Not for HfAuto models. A member has data x tensor ranks."
        ),
    ] = 1
    threads: Annotated[
        int, NumberLimits(0), Doc("CPU threads for training. 0 keeps PyTorch's own choice.")
    ] = 0
    precision: Annotated[Precision, Doc(PRECISION)] = "auto"
    compile: Annotated[Compile, Doc(COMPILE)] = "auto"
    grad_accum_in_fp32: Annotated[
        bool, Doc("Sum gradients in fp32. Cannot be disabled, because weights are fp32.")
    ] = True
    micro_batch_size: Annotated[
        int,
        NumberLimits(AUTO),
        Doc(
            "Sequences per forward pass and rank. When memory runs out, a member with one device reduces it, "
            f"and a member with several devices ends. auto: as many as fit, up to {MOST}."
        ),
    ] = 8
    activation_checkpointing: Annotated[
        Checkpointing,
        Doc(
            "Compute activations twice to save memory. auto: if one sequence does not fit otherwise. "
            "On several devices, auto needs --micro-batch-size auto."
        ),
    ] = "auto"
    matformer_load_strategy: Annotated[
        Literal["auto", "sliced", "universal"],
        Doc(
            "Which files of a tier to read. auto: the tier's own if complete; sliced: only these; "
            "universal: the full model's."
        ),
    ] = "auto"

    dummy_training_delay_secs: Annotated[
        int,
        NumberLimits(0, 86_400),
        Doc(
            "Seconds to wait instead of training each share. The result is encoded noise, and "
            "everything else is real. 0 disables it."
        ),
    ] = 0
    fault_latency_ms: Annotated[
        int,
        NumberLimits(0, 10_000),
        Doc("Milliseconds of delay for everything that this member sends to peers. 0 disables it."),
    ] = 0
    fault_packet_loss: Annotated[
        float,
        NumberLimits(0, 50),
        Doc(
            "Percentage of this member's packets to send again after a round trip, as if they were "
            "lost. 0 disables it."
        ),
    ] = 0.0
    fault_bandwidth_limit: Annotated[
        str | None,
        Doc(
            "Bandwidth limits of this member as UP/DOWN in Mb/s, for example 20/100. Unlimited by "
            "default."
        ),
    ] = None
    fault_seed: Annotated[
        int,
        NumberLimits(0, 2**32 - 1),
        Doc("Seed that chooses the lost packets. Each member draws its own losses from it."),
    ] = 0

    checkpoint_dir: Annotated[
        Path | None, Doc("Directory for a checkpoint after every epoch (tier 0 only).")
    ] = None
    checkpoint_put_links: Annotated[
        str | None,
        Doc(
            "JSON file, or https address that returns one, with a signed upload link (HTTP PUT) for "
            "each file of a checkpoint. Copies every checkpoint of --checkpoint-dir there. {checkpoint} in "
            "an address becomes the name of its directory."
        ),
    ] = field(default=None, repr=False)
    hub_repo: Annotated[
        str | None, Doc("Hugging Face repository that receives checkpoints (needs HF_TOKEN).")
    ] = None
    hub_token: Annotated[str | None, Doc("Token for the Hub, read from HF_TOKEN.")] = field(
        default=None, repr=False
    )
    delete_old_steps: Annotated[
        bool, Doc("Delete older checkpoints of this run from the directory.")
    ] = True
    keep_steps: Annotated[
        int, NumberLimits(1), Doc("How many checkpoints to keep in the directory.")
    ] = 3

    logs: Annotated[
        Literal["tui", "console", "json"],
        Doc(
            "How to show progress: tui is a screen of tabs on a terminal, and console lines elsewhere."
        ),
    ] = "tui"
    write_log: Annotated[Path | None, Doc("Also append JSON lines to this file.")] = None
    events_dir: Annotated[
        Path | None,
        Doc(
            "Directory for this member's events: JSON lines, a file per epoch. The commands events and plot read it."
        ),
    ] = None
    metrics_port: Annotated[
        int | None,
        NumberLimits(1, 65535),
        Doc("TCP port on this machine for Prometheus metrics (/metrics). By default none."),
    ] = None
    wandb_project: Annotated[
        str | None,
        Doc(
            "Weights & Biases project for this member's metrics (extra `wandb`). The key comes "
            "from `wandb login` or WANDB_API_KEY. WANDB_MODE=offline sends nothing."
        ),
    ] = None
    wandb_run: Annotated[
        str | None, Doc("Run name in --wandb-project. By default made of run, tier and wallet.")
    ] = None
    wandb_group: Annotated[
        str | None, Doc("Group in --wandb-project. By default the run's id.")
    ] = None
    wandb_entity: Annotated[
        str | None, Doc("Account or team of --wandb-project. By default the key's own.")
    ] = None
    trackio_project: Annotated[
        str | None,
        Doc(
            "trackio project for the same metrics (extra `trackio`), on this machine or where its own variables say."
        ),
    ] = None
    write_gradients_dir: Annotated[
        Path | None,
        Doc(
            "Directory, one per member, for every result that this member applies. decode-gradients reads it."
        ),
    ] = None
    optimizer_state_dir: Annotated[
        Path | None,
        Doc(
            "Directory for the optimizer's private state after every epoch, so that a restarted "
            "member continues from it. Takes up to 12 bytes per parameter, more if most numbers "
            "are sent."
        ),
    ] = None
    prompt_text: Annotated[
        str | None,
        Doc(
            "Text that the model continues during training, in events `sample`. Needs its tokenizer."
        ),
    ] = None
    prompt_tokens: Annotated[
        int | None,
        NumberLimits(1, 4096),
        Doc(f"Length of the continuation of --prompt-text, in tokens. By default {PROMPT_TOKENS}."),
    ] = None
    eval_tasks: Annotated[
        str | None,
        Doc(
            "Tasks to evaluate between rounds, in events `evaluated`, separated by commas: "
            "source-choice, or names or YAML files of the LM Evaluation Harness (extra `eval`). "
            "Needs the tokenizer, and memory for a copy of the weights."
        ),
    ] = None
    eval_fewshot: Annotated[
        int | None,
        NumberLimits(0, 64),
        Doc("Examples before each question of --eval-tasks. By default 0."),
    ] = None
    eval_seed: Annotated[
        int | None,
        NumberLimits(0, 2**31 - 1),
        Doc("Seed for the choice of questions. By default 0."),
    ] = None
    eval_task_max_docs: Annotated[
        int | None, NumberLimits(1), Doc(f"Maximum questions per task. By default {DOCS}.")
    ] = None
    optim_stats_steps: Annotated[
        int,
        NumberLimits(0),
        Doc(
            "Steps between events `optimizer`, with the norms of updates, results and residuals. 0 disables them."
        ),
    ] = 0

    @property
    def token_repositories(self) -> tuple[str, ...]:
        """Return the Hub repositories to read with the token: --hub-token-for and --hub-repo."""
        return tuple(name for name in (self.hub_token_for, self.hub_repo) if name)

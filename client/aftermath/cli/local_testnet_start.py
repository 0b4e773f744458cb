"""`local-testnet start`: start a run and its clients on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.base.outputs import check_can_be_directory
from aftermath.base.quiet_interrupts import EXIT_INTERRUPTED
from aftermath.base.signals import terminations_interrupt
from aftermath.base.stdio import VERBOSITY, Verbosity
from aftermath.cli.command import command
from aftermath.cli.present import Result
from aftermath.testnet.display_option import DisplayOption

if TYPE_CHECKING:
    from aftermath.events.trackers import TrackerOptions
    from aftermath.testnet.display import DisplayMode
    from aftermath.testnet.plan import ClientExtras, LineOptions

FAULTS = "Faults"
CLIENTS = "Clients"
SHOWN = "Display"


class BackendName(StrEnum):
    """The backend of the run: a chain or a server."""

    SOLANA = "solana"
    CENTRALIZED = "centralized"


@dataclass(frozen=True)
class BackendOptions:
    """Options of the backend and of the output directory."""

    backend: Annotated[
        BackendName,
        typer.Option(
            help="solana: an embedded network with the real programs; centralized: a server."
        ),
    ] = BackendName.SOLANA
    server_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65534,
            help="Port of the server, or of the network's RPC; its websocket takes the next one. 0 picks a free one.",
        ),
    ] = 21000
    dir: Annotated[
        Path,
        typer.Option(
            help="Directory for all output. An earlier testnet's output there is removed first; "
            "its checkpoints are moved to checkpoints-1, -2 and so on."
        ),
    ] = Path("runs/local-testnet")
    first_client_checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Directory or Hub repository of the first checkpoint, instead of the config's."
        ),
    ] = None
    hf_token: Annotated[
        str | None,
        typer.Option(
            help="Token for the Hub. Other users can read arguments, so prefer HF_TOKEN.",
            show_default=False,
        ),
    ] = None

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables for the processes."""
        return {"HF_TOKEN": self.hf_token} if self.hf_token else {}


@dataclass(frozen=True)
class ClientOptions:
    """Options of every client."""

    client_matformer_tiers: Annotated[
        str,
        typer.Option(
            help="Tiers of the clients in order, as 0,1,2. Further clients repeat them.",
            rich_help_panel=CLIENTS,
        ),
    ] = "0"
    client_device: Annotated[
        str,
        typer.Option(help="--device of every client: auto, cpu, cuda:0.", rich_help_panel=CLIENTS),
    ] = "auto"
    write_distro_data: Annotated[
        Path | None,
        typer.Option(
            help="Directory for results (train --write-gradients-dir), a folder per client.",
            rich_help_panel=CLIENTS,
        ),
    ] = None
    write_log: Annotated[
        bool,
        typer.Option(
            "--write-log",
            help="Clients also write their events to logs/NAME.jsonl.",
            rich_help_panel=CLIENTS,
        ),
    ] = False
    optim_stats: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps between events with the norms of the optimizer. By default none.",
            rich_help_panel=CLIENTS,
        ),
    ] = None
    eval_tasks: Annotated[
        str | None,
        typer.Option(
            help="Tasks to evaluate between rounds, separated by commas.", rich_help_panel=CLIENTS
        ),
    ] = None
    client_checkpoint_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory for checkpoints of tier-0 clients, a folder per client. By default in --dir.",
            rich_help_panel=CLIENTS,
            show_default=False,
        ),
    ] = None
    client_keep_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Checkpoints that each client keeps (train --keep-steps).",
            rich_help_panel=CLIENTS,
        ),
    ] = None
    wandb_project: Annotated[
        str | None,
        typer.Option(
            help="Weights & Biases project for every client's metrics (train --wandb-project).",
            rich_help_panel=CLIENTS,
        ),
    ] = None
    wandb_group: Annotated[
        str | None,
        typer.Option(
            help="Group in --wandb-project. By default the run's id.", rich_help_panel=CLIENTS
        ),
    ] = None
    wandb_entity: Annotated[
        str | None,
        typer.Option(help="Account or team of --wandb-project.", rich_help_panel=CLIENTS),
    ] = None
    trackio_project: Annotated[
        str | None,
        typer.Option(
            help="trackio project for the same metrics (train --trackio-project).",
            rich_help_panel=CLIENTS,
        ),
    ] = None

    def extras(self, trackers: TrackerOptions, line: LineOptions) -> ClientExtras:
        """Return the options as a testnet plan takes them."""
        from aftermath.testnet.plan import ClientExtras

        return ClientExtras(
            device=self.client_device,
            write_log=self.write_log,
            distro_data=self.write_distro_data,
            optim_stats=self.optim_stats,
            eval_tasks=self.eval_tasks,
            checkpoints=self.client_checkpoint_dir,
            keep_steps=self.client_keep_steps,
            trackers=trackers,
            line=line,
        )


@dataclass(frozen=True)
class KillOptions:
    """The clients to kill, and how often."""

    random_kill_num: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of training clients to kill (kill -9) each time. They restart.",
            rich_help_panel=FAULTS,
        ),
    ] = 0
    random_kill_interval: Annotated[
        int,
        typer.Option(
            min=1, help="Seconds between kills, from the first step on.", rich_help_panel=FAULTS
        ),
    ] = 120
    allowed_to_kill: Annotated[
        str | None,
        typer.Option(
            help="Clients that may be killed, as 2,3 (the first is 1). By default all.",
            rich_help_panel=FAULTS,
        ),
    ] = None


@dataclass(frozen=True)
class LineFaultOptions:
    """Faults of each client's line to its peers."""

    latency_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000,
            help="Milliseconds of delay for everything that a client sends to its peers.",
            rich_help_panel=FAULTS,
        ),
    ] = 0
    loss: Annotated[
        float,
        typer.Option(
            min=0,
            max=50,
            help="Percentage of a client's packets to send again after a round trip, as if they were lost.",
            rich_help_panel=FAULTS,
        ),
    ] = 0.0
    bandwidth: Annotated[
        str | None,
        typer.Option(
            help="Bandwidth limits of each client as UP/DOWN in Mb/s, for example 20/100. Unlimited by default.",
            rich_help_panel=FAULTS,
        ),
    ] = None
    fault_seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**32 - 1, help="Seed of the lost packets.", rich_help_panel=FAULTS
        ),
    ] = 0

    def line(self) -> LineOptions:
        """Return the faults. Raises UsageError."""
        from aftermath.p2p.line_faults import bandwidth_of
        from aftermath.testnet.plan import LineOptions

        bandwidth_of("--bandwidth", self.bandwidth)
        return LineOptions(self.latency_ms, self.loss, self.bandwidth, self.fault_seed)


@dataclass(frozen=True)
class ShowOptions:
    """How the testnet is shown."""

    tui: Annotated[
        DisplayOption,
        typer.Option(
            help="true: screens in tmux panes, or one screen of tabs without tmux; screen: tabs even with tmux; "
            "false: log lines, in panes if there is tmux.",
            rich_help_panel=SHOWN,
        ),
    ] = DisplayOption.TRUE
    log: Annotated[
        Verbosity,
        typer.Option(
            help="Log level of the lines. debug prints every event.", rich_help_panel=SHOWN
        ),
    ] = Verbosity.INFO
    headless: Annotated[
        bool,
        typer.Option(
            "--headless",
            help="Print lines instead of panes, also in a terminal.",
            rich_help_panel=SHOWN,
        ),
    ] = False
    headless_exit_after_secs: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --headless: end after this many seconds.", rich_help_panel=SHOWN
        ),
    ] = None

    def display_mode(self) -> DisplayMode:
        """Return what to show on this terminal."""
        import shutil

        from rich.console import Console

        from aftermath.testnet.display import display_mode
        from aftermath.ui.terminal.screen import can_show

        terminal = not self.headless and can_show(Console())
        return display_mode(self.tui, terminal=terminal, tmux=shutil.which("tmux") is not None)


@command(
    "local-testnet start",
    example="aftermath-solana local-testnet start --num-clients 3 --config-path demo --client-matformer-tiers 0,1,2 "
    "--latency-ms 50 --loss 1 --bandwidth 20/20",
)
def local_testnet_start(
    num_clients: Annotated[int, typer.Option(min=1, max=64, help="Number of clients.")],
    config_path: Annotated[
        Path,
        typer.Option(
            help="The run's config: a file, a directory with a config.toml, or the name of a packaged config."
        ),
    ],
    *,
    deployment: BackendOptions,
    clients: ClientOptions,
    kills: KillOptions,
    faults: LineFaultOptions,
    show: ShowOptions,
    json_output: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON document at the end, and lines on stderr.",
            show_default=False,
        ),
    ] = False,
) -> Result:
    """Start a run and its clients on this machine.

    Runs the real programs on a local network, or a centralized server, and a process per client.
    Shows them in tmux panes, without tmux on a screen of tabs, and without a terminal as lines.
    Ends when the run is finished, with q on the screen, with Ctrl-C, or with Ctrl-B d in tmux, and
    then ends all its processes. SIGTERM and a closed terminal do what Ctrl-C does.
    """
    from rich.console import Console

    from aftermath.base.errors import UsageError
    from aftermath.cli.main import child_environment
    from aftermath.events.trackers import TrackerOptions
    from aftermath.testnet.backends import Centralized, Solana
    from aftermath.testnet.display import DisplayMode, shown
    from aftermath.testnet.files import chosen
    from aftermath.testnet.plan import (
        TESTNET_NAMES,
        LocalTestnetPlan,
        chaos_of,
        clients_of,
    )
    from aftermath.testnet.run import Ending, Testnet
    from aftermath.testnet.workdir import claimed_workdir

    if show.headless_exit_after_secs is not None and not show.headless:
        raise UsageError("--headless-exit-after-secs needs --headless", "Pass both")
    check_can_be_directory(deployment.dir.expanduser(), "Name another directory: --dir DIR")
    trackers = TrackerOptions.of(clients)
    trackers.check()
    config = chosen(config_path, deployment.first_client_checkpoint)
    client_plans = clients_of(num_clients, clients.client_matformer_tiers, config)
    extras = clients.extras(trackers, faults.line())
    mode = show.display_mode()
    panes = mode is DisplayMode.PANES
    workdir = deployment.dir.expanduser().absolute()
    port = deployment.server_port
    plan = LocalTestnetPlan(
        config, client_plans, workdir, port, extras, panes, panes and show.tui is DisplayOption.TRUE
    )
    chaos = chaos_of(
        kills.random_kill_num,
        kills.random_kill_interval,
        allowed_text=kills.allowed_to_kill,
        clients=client_plans,
    )
    variables = child_environment() | {"OMP_NUM_THREADS": str(plan.threads)} | deployment.variables
    console = Console(stderr=json_output, quiet=panes)
    verbosity = VERBOSITY.get()
    level = show.log if verbosity is Verbosity.INFO else verbosity
    backend = (
        Solana(plan, variables) if deployment.backend is BackendName.SOLANA else Centralized(plan)
    )
    display = shown(mode, plan, backend.keeper, console, level)
    with (
        claimed_workdir(plan.place, "testnet", "--dir DIR", TESTNET_NAMES),
        terminations_interrupt(),
        display as lines,
    ):
        testnet = Testnet(plan, backend, chaos, variables, lines)
        summary = testnet.perform(show.headless_exit_after_secs)
    interrupted = summary.ending is Ending.LEFT and mode is DisplayMode.LINES
    return Result(
        summary.data(), summary.line(), EXIT_INTERRUPTED if interrupted else int(not summary.good)
    )

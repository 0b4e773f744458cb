"""The command `server validate-config`: run the checks of `server run` without starting it."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.present import Result, facts
from aftermath.server.commands.options import DataConfig, MaybeRunId, State


@command(
    "server validate-config",
    example="aftermath-centralized server validate-config --state state.toml --data-config data.toml",
)
def server_validate_config(
    state: State, data_config: DataConfig = None, run_id: MaybeRunId = None
) -> Result:
    """Check the files of a server without starting it.

    Checks the run's rules, its model and the cut into tiers. With --data-config also checks the
    data, and that both files match.
    """
    from aftermath.owner.schema import shape_of
    from aftermath.server.served_data import load_served_data
    from aftermath.server.state_file import load_state_file

    chosen, config = load_state_file(state, run_id)
    shape = shape_of(config)
    data = {
        "run_id": chosen,
        "num_parameters": shape.num_parameters,
        "tiers": list(shape.schema.state.widths),
        "bytes_per_round": shape.bytes_per_round,
        "total_steps": config.config.total_steps,
        "sequences": None,
    }
    if data_config is not None:
        data["sequences"] = load_served_data(data_config, config)[1].sequences
    shown = {name: value for name, value in data.items() if value is not None}
    return Result(data, facts(shown | {"bytes_per_round": shape.bytes_in_words}))

"""The console script `aftermath-solana`: the index of its commands (see `index`).

`child_environment` is for programs that start these commands.
"""

from __future__ import annotations

import os

from aftermath.cli.index import Entry, Index
from aftermath.cli.next_steps import QUIET
from aftermath.cli.profile import PROFILE_VARIABLE, option_values

OWN = "Own a run"
MEMBER = "Take part in a run"
LAB = "Train without a run"
MODEL = "Checkpoints of models"
DATA = "Token files"
LOOK = "Look at runs"
JOIN = "Who may join"
NETWORK = "Networks and programs"
PROFILE = "Stored defaults"


INDEX = {
    "train": Entry(MEMBER, "Join a run and train until it ends."),
    "predownload": Entry(MEMBER, "Fetch a run's model and check its data before joining."),
    "withdraw": Entry(
        MEMBER, "End a wallet's membership of a run and take back its bond and rent.", "wallet"
    ),
    "show-identity": Entry(
        MEMBER, "Show a wallet's public key and the identity that peers see.", "wallet"
    ),
    "can-join": Entry(MEMBER, "Check whether a wallet may join a run, and say why not."),
    "doctor": Entry(
        MEMBER, "Find problems of this machine, wallet and cluster, and print their fixes."
    ),
    "train-local": Entry(LAB, "Train on this machine alone, without chain or network."),
    "eval": Entry(LAB, "Evaluate a checkpoint on named tasks.", "ask_model"),
    "generate": Entry(LAB, "Generate text with a checkpoint, or with a tier of it.", "ask_model"),
    "preview-lr": Entry(
        LAB, "Show the learning rate of every step of a config file.", "config_file"
    ),
    "model init": Entry(MODEL, "Write a new, untrained checkpoint with a tokenizer."),
    "model inspect": Entry(MODEL, "Describe a checkpoint and its tiers.", "model"),
    "model export": Entry(MODEL, "Export tiers of a full checkpoint, with a manifest.", "model"),
    "model merge": Entry(MODEL, "Merge a tier's slice into its full model.", "model"),
    "model verify": Entry(
        MODEL, "Verify every tensor and file of a checkpoint and its tiers.", "model"
    ),
    "model push": Entry(MODEL, "Upload a checkpoint to the Hugging Face Hub.", "model"),
    "data tokenize": Entry(DATA, "Turn text into token files.", "data"),
    "data inspect": Entry(DATA, "Describe token files and print their hash.", "data"),
    "data fetch": Entry(DATA, "Download the tokens of FineWeb, or numbered token files.", "data"),
    "data serve": Entry(DATA, "Serve token files to a run's members, over TCP.", "data"),
    "init": Entry(OWN, "Write the commented config file of a new run."),
    "run-files": Entry(
        OWN, "Make the missing model and token files of a run's config.", "config_file"
    ),
    "config validate": Entry(OWN, "Check a run's config file without any network.", "config_file"),
    "config explain": Entry(OWN, "Explain a key of a run's config file.", "config_file"),
    "config schema": Entry(OWN, "Print the JSON Schema of a run's config file.", "config_file"),
    "estimate": Entry(OWN, "Estimate what a run takes: SOL, bytes, memory, tokens and time."),
    "create-run": Entry(OWN, "Create a run on chain."),
    "update-config": Entry(OWN, "Set or change a run's configuration."),
    "set-paused": Entry(OWN, "Pause or resume a run.", "run_control"),
    "tick": Entry(OWN, "Advance a run whose deadline has passed.", "run_control"),
    "checkpoint": Entry(OWN, "Record where the run's durable checkpoint is."),
    "rewind": Entry(
        OWN,
        "Take a paused run back to a recorded checkpoint, or list the checkpoints.",
        "checkpoint",
    ),
    "reopen": Entry(OWN, "Continue a finished run with more steps.", "checkpoint"),
    "kick": Entry(
        OWN, "Remove a wallet from the next epoch, or bar it from the run.", "run_control"
    ),
    "set-future-epoch-rates": Entry(
        OWN, "Set the points that members earn and lose from the next epoch on.", "run_control"
    ),
    "close-run": Entry(OWN, "Close a halted run and take back its rent.", "run_control"),
    "status": Entry(LOOK, "Show a wallet's SOL, runs and seats.", "wallet"),
    "list-runs": Entry(LOOK, "List the runs on a cluster.", "runs"),
    "show-run": Entry(LOOK, "Show a run's state, members, and what it waits for.", "runs"),
    "watch": Entry(LOOK, "Follow a run's state until it finishes, or until Ctrl-C.", "runs"),
    "observe": Entry(LOOK, "Serve a web page of a cluster's runs."),
    "plot": Entry(
        LOOK, "Plot a run's history from its members' events, or compare local trainings."
    ),
    "events": Entry(LOOK, "Print, follow or export the events of members."),
    "decode-gradients": Entry(
        LOOK, "Show the results in files that train --write-gradients-dir wrote."
    ),
    "json-dump-run": Entry(LOOK, "Print everything the chain has about a run, as JSON.", "runs"),
    "json-dump-user": Entry(LOOK, "Print everything a run has about one wallet, as JSON.", "runs"),
    "join-authorization-create": Entry(
        JOIN,
        "Let a key, or everybody, join one run or all runs of a join authority.",
        "join_authorization",
    ),
    "join-authorization-read": Entry(
        JOIN, "Show an authorization and its delegates.", "join_authorization"
    ),
    "join-authorization-delegate": Entry(
        JOIN, "Set the keys that may join on behalf of an authorized key.", "join_authorization"
    ),
    "join-authorization-delete": Entry(
        JOIN, "Withdraw an authorization, and close it if possible.", "join_authorization"
    ),
    "config set": Entry(
        PROFILE, "Store a cluster, wallet or run for all commands.", "config_profile"
    ),
    "config show": Entry(
        PROFILE, "Show which cluster, wallet and run commands use, and why.", "config_profile"
    ),
    "config unset": Entry(PROFILE, "Remove a stored cluster, wallet or run.", "config_profile"),
    "local-testnet start": Entry(NETWORK, "Start a run and its clients on this machine."),
    "localnet": Entry(NETWORK, "Run a local Solana network with the programs on it."),
    "deploy": Entry(NETWORK, "Deploy or upgrade the programs on a cluster."),
}
SOLANA = Index(
    name="aftermath-solana",
    package="aftermath.cli",
    entries=INDEX,
    summary="Train one language model together, through Solana.",
    epilog="Options that name a cluster, a wallet or a run also read an environment variable: --run-id reads RUN_ID; "
    "after that comes the profile (config set), then the default.",
    stored=option_values,
)
load = SOLANA.load
app = SOLANA.app
main = SOLANA.main


def child_environment() -> dict[str, str]:
    """Return this process's environment without option variables, keys and profile, and quiet."""
    from aftermath.chain.wallet import IDENTITY_VARIABLE, WALLET_VARIABLE  # slow to import

    options = {
        str(option.envvar) for name in INDEX for option in load(name).params if option.envvar
    }
    hidden = options | {WALLET_VARIABLE, IDENTITY_VARIABLE}
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    return inherited | {PROFILE_VARIABLE: "", QUIET: "1"}


if __name__ == "__main__":
    main()

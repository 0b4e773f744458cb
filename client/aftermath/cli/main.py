"""The console script `aftermath-solana`: the index of its commands (see `index` for what is made of it)."""

from __future__ import annotations

from aftermath.cli.index import Entry, Index
from aftermath.cli.profile import stored

OWN, MEMBER, LAB, MODEL, DATA, LOOK, JOIN, NETWORK, PROFILE = (
    "Own a run",
    "Take part in a run",
    "Train without a run",
    "Checkpoints of models",
    "Token files",
    "Look at runs",
    "Who may join",
    "Networks and programs",
    "What is typed each time",
)


INDEX = {
    "train": Entry(MEMBER, "Join a run and train until it ends."),
    "predownload": Entry(MEMBER, "Fetch a run's model and check its data before joining."),
    "withdraw": Entry(MEMBER, "End a wallet's membership of a run and take back its bond and rent."),
    "show-identity": Entry(MEMBER, "Show the wallet's public key and the identity peers see."),
    "can-join": Entry(MEMBER, "Say whether a wallet may join a run, and why not."),
    "doctor": Entry(MEMBER, "Say what is wrong with this machine, wallet and cluster, and how to fix it."),
    "train-local": Entry(LAB, "Train on this machine alone, without chain or network."),
    "eval": Entry(LAB, "Ask a model the questions of named tasks."),
    "generate": Entry(LAB, "Write text with a model, or with a tier of it."),
    "preview-lr": Entry(LAB, "Show the learning rate of every step that a config file means."),
    "model init": Entry(MODEL, "Write a new, untrained checkpoint with a tokenizer."),
    "model inspect": Entry(MODEL, "Say what a checkpoint is, tier by tier."),
    "model export": Entry(MODEL, "Export tiers of a full checkpoint, with a manifest."),
    "model merge": Entry(MODEL, "Put a tier's slice back into the full model it belongs to."),
    "model verify": Entry(MODEL, "Read a checkpoint and its tiers whole, and say whether they are."),
    "model push": Entry(MODEL, "Upload a checkpoint to the Hugging Face Hub."),
    "data tokenize": Entry(DATA, "Turn text into token files."),
    "data inspect": Entry(DATA, "Describe token files and print their hash."),
    "data fetch": Entry(DATA, "Download the tokens of FineWeb, or numbered token files elsewhere."),
    "data serve": Entry(DATA, "Serve token files to a run's members, over TCP."),
    "init": Entry(OWN, "Write the commented config file of a new run, from questions or options."),
    "run-files": Entry(OWN, "Make the model and the tokens that a run's config names and that are not there yet."),
    "config validate": Entry(OWN, "Say what is wrong with a run's config file, asking nobody."),
    "config explain": Entry(
        OWN,
        "Say what a key of a run's config file is: its type, unit, default and limits, what it does, and an example.",
    ),
    "config schema": Entry(
        OWN, "Print the JSON Schema of a run's config file, by which editors complete and check one."
    ),
    "estimate": Entry(OWN, "Say what a run will take: SOL, bytes, memory, tokens and time."),
    "create-run": Entry(OWN, "Create a run on chain."),
    "update-config": Entry(OWN, "Set or change a run's configuration."),
    "set-paused": Entry(OWN, "Pause or resume a run."),
    "tick": Entry(OWN, "Advance a run whose deadline has passed."),
    "checkpoint": Entry(OWN, "Record where the run's durable checkpoint is."),
    "rewind": Entry(OWN, "Take a paused run back to a recorded checkpoint, or list these."),
    "reopen": Entry(OWN, "Let a finished run go on, with more steps."),
    "kick": Entry(OWN, "Take a wallet out of the next epoch, or bar it from the run."),
    "set-future-epoch-rates": Entry(OWN, "Set the points that members earn and lose from the next epoch on."),
    "close-run": Entry(OWN, "Close a halted run and take back its rent."),
    "status": Entry(LOOK, "Show a wallet's SOL, its runs and its seats."),
    "list-runs": Entry(LOOK, "List the runs on a cluster."),
    "show-run": Entry(LOOK, "Show where a run stands: how far it is, who is in it, what it waits for and until when."),
    "watch": Entry(LOOK, "Follow where a run stands, until it is finished, or until Ctrl-C."),
    "observe": Entry(
        LOOK, "Serve a web page of the cluster's runs: state, members, loss by tier, costs, live and back in time."
    ),
    "plot": Entry(LOOK, "Draw a run's history from its members' events, or compare trainings of train-local."),
    "events": Entry(LOOK, "Print the events of members in the order of time, follow them, or export them to a file."),
    "decode-gradients": Entry(LOOK, "Show what members sent, from the files that train writes of it."),
    "json-dump-run": Entry(LOOK, "Print everything the chain knows of a run, as JSON."),
    "json-dump-user": Entry(LOOK, "Print everything a run knows of one wallet, as JSON."),
    "join-authorization-create": Entry(
        JOIN, "Let a key, or everybody, join one run of a join authority, or all of them."
    ),
    "join-authorization-read": Entry(JOIN, "Show an authorization and its delegates."),
    "join-authorization-delegate": Entry(JOIN, "Set the keys that may join on behalf of an authorized key."),
    "join-authorization-delete": Entry(JOIN, "Withdraw an authorization, and close it when that is allowed."),
    "config set": Entry(PROFILE, "Store a cluster, wallet or run for all commands."),
    "config show": Entry(PROFILE, "Show what commands take where nothing is said, and where that comes from."),
    "config unset": Entry(PROFILE, "Forget what was stored for all commands."),
    "local-testnet start": Entry(NETWORK, "Start a run and its clients on this machine, and show them."),
    "localnet": Entry(NETWORK, "Run a local Solana network with the programs on it."),
    "deploy": Entry(NETWORK, "Deploy or upgrade the programs on a cluster."),
}
SOLANA = Index(
    name="aftermath-solana",
    package="aftermath.cli",
    entries=INDEX,
    about="Train one language model together, through Solana.",
    epilog="Options that name a cluster, a wallet or a run also read an environment variable: --run-id reads RUN_ID; "
    "after that comes the profile (config set), then the default.",
    stored=stored,
)
find, called, about, load, app, main = SOLANA.find, SOLANA.called, SOLANA.begun, SOLANA.load, SOLANA.app, SOLANA.main


if __name__ == "__main__":
    main()

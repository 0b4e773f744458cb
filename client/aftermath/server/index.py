"""The commands of the console script `aftermath-centralized`."""

from __future__ import annotations

from aftermath.cli.index import Entry, Index

SERVER = "Host a run"
CLIENT = "Take part in a run"
LOOK = "Look at a run"

CENTRALIZED = Index(
    name="aftermath-centralized",
    package="aftermath.server.commands",
    entries={
        "server run": Entry(SERVER, "Host a run and serve it to its members.", "host"),
        "server validate-config": Entry(
            SERVER, "Check the files of a server without starting it.", "host"
        ),
        "client train": Entry(
            CLIENT, "Join the run of a server and train until it ends.", "take_part"
        ),
        "can-join": Entry(
            CLIENT,
            "Check whether a member may join a server's run, and print the reason if not.",
            "join_checks",
        ),
        "predownload": Entry(
            CLIENT,
            "Fetch the model of a server's run and check its data before joining.",
            "join_checks",
        ),
        "doctor": Entry(
            CLIENT,
            "Find problems of this machine and its connection to a server, and print their fixes.",
            "join_checks",
        ),
        "client show-identity": Entry(
            CLIENT, "Show the public key by which a server knows a member.", "take_part"
        ),
        "show-run": Entry(
            LOOK,
            "Show the state of a server's run: its progress, members, what it waits for and until when.",
            "run_status",
        ),
        "watch": Entry(
            LOOK,
            "Follow the status of a server's run until it is finished or Ctrl-C is pressed.",
            "run_status",
        ),
    },
    summary="Train one language model together, through one server instead of a chain.",
    epilog="Options that name a run, a server or a key also read an environment variable: --run-id reads RUN_ID.",
)

"""The command line: thin typer commands over the other packages.

A command turns options into a call of another package, and its answer into a `Result`. `present`
prints results and errors, and `options` defines shared options. Packages that load torch, anchorpy
or matplotlib are imported inside commands, so that `--help` stays fast.
"""

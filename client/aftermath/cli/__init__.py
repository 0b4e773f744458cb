"""The command line: one thin typer command per file over the other packages.

A command turns options into one call of another package and the answer into a `Result`; how a
result or an error looks is decided in `present`, what an option is called and does in `options`.
Packages that need torch, anchorpy or matplotlib are imported inside the commands that use them, so
that `--help` stays fast.
"""

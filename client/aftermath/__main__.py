"""`python -m aftermath` is `aftermath-solana`, also where that is not in the path."""

from __future__ import annotations

from aftermath.cli.main import main

main()

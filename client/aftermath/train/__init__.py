"""The `train` process: settings, checks, and the construction of a member."""

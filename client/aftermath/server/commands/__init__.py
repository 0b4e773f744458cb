"""The commands of `aftermath-centralized`. `server.index` names the file of each."""

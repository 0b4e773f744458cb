"""The commands of `aftermath-centralized`, one file each."""

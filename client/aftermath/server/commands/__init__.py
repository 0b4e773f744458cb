"""The commands of `aftermath-centralized`, one thin file each."""

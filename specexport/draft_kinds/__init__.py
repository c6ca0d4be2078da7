"""The build side of each kind of draft."""

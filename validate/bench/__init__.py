"""`bench`: what speculation gains on this machine."""

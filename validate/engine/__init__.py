"""`engine`: export, build, check and try a pair in one command."""

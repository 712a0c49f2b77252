"""What "the same" means: arrays, near ties, and what a difference means to a decoder."""

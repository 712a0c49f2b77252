"""What "the same" means: arrays, ties, measures, and a checkpoint's own tensors."""

"""The modules of drafters and targets, their tensors' shapes and their signatures."""

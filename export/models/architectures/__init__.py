"""Layers of targets that share little with those of other decoders, one file an architecture."""

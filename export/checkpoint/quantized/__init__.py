"""Checkpoints that store codes and scales, read as what they stand for."""

"""Checkpoints by name: ``owner/name[@revision]`` on the Hugging Face hub, and published pairs."""

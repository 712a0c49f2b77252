"""draftrt: block drafters for speculative decoding, from checkpoint to a low-latency GPU."""

__version__ = "0.1.0"

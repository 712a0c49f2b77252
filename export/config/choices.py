"""Names that a config may choose from; the code behind each lies in the file named."""

from __future__ import annotations

ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu")  # activations.py
MARKOV_TYPES = ("vanilla", "gated", "rnn")  # dspark.py
ROPE_TYPES = (  # rope.py
    "default",
    "linear",
    "dynamic",
    "yarn",
    "llama3",
    "longrope",
    "proportional",
)

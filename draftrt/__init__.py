"""draftrt: block drafters for speculative decoding, from checkpoint to a low-latency GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from draftrt.runtime.decoding.grammar import Grammar
    from draftrt.runtime.decoding.options import DecodeOptions
    from draftrt.runtime.pair import Pair

__version__ = "0.1.0"
__all__ = ["DecodeOptions", "Grammar", "__version__", "load"]


def load(
    path: Path | str,
    *,
    target: Path | str | None = None,
    target_port: str | None = None,
    backend: str = "onnxruntime",
    device: str = "cpu",
    threads: int = 1,
    verify: bool = True,
    map_weights: bool = False,
    ignore_memory: bool = False,
) -> Pair:
    """Open a bundle for decoding; see `draftrt.runtime.load.load` for arguments and errors."""
    from draftrt.runtime.load import load as load_pair

    return load_pair(
        path,
        target=target,
        target_port=target_port,
        backend=backend,
        device=device,
        threads=threads,
        verify=verify,
        map_weights=map_weights,
        ignore_memory=ignore_memory,
    )


def __getattr__(name: str) -> object:
    """Import what the package shows of its runtime when it is first asked for."""
    if name == "DecodeOptions":
        from draftrt.runtime.decoding.options import DecodeOptions

        return DecodeOptions
    if name == "Grammar":
        from draftrt.runtime.decoding.grammar import Grammar

        return Grammar
    raise AttributeError(f"module 'draftrt' has no attribute {name!r}")

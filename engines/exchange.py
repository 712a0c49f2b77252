"""What the build process is told and what it answers; both travel as JSON files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from draftrt.codec import from_json, to_json
from draftrt.engines.capabilities import Backend
from draftrt.engines.profiles import ShapeRange

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One plan to build. Paths are absolute.

    Attributes:
        backend: the builder.
        sms: compute capabilities of the plan.
        onnx: ONNX file.
        plan: file to write the plan to.
        shapes: input name to its shape range; every input of the graph.
        workspace_bytes: most device memory a layer may use for scratch; None: TensorRT's default.
        strip: leave the weights out.
        device: what the SM was taken from, for messages; empty where it was given.
    """

    backend: Backend
    sms: tuple[int, ...]
    onnx: str
    plan: str
    shapes: dict[str, ShapeRange]
    workspace_bytes: int | None
    strip: bool = False
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReply:
    """How a build ended, from a process that lived to say so.

    Attributes:
        problem: why there is no plan; empty when there is one.
        hint: what the user can do about it.
        peak_rss_bytes: peak resident memory of the process.
        num_attentions: attention layers in the graph.
        num_decomposed: how many of them may run as separate operations, having no fused kernel.
    """

    peak_rss_bytes: int
    problem: str = ""
    hint: str = ""
    num_attentions: int = 0
    num_decomposed: int = 0


def write(path: Path, value: BuildRequest | BuildReply) -> None:
    """Write a request or a reply."""
    path.write_text(json.dumps(to_json(value)), encoding="utf-8")


def read(cls: type[T], path: Path) -> T:
    """Read what `write` wrote.

    Raises:
        BundleError: ill-formed.
    """
    return from_json(cls, json.loads(path.read_text(encoding="utf-8")), cls.__name__)

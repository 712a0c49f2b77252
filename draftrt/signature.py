"""The table of a graph's inputs and outputs, and the check of feeds against it.

Export writes the table, engines derive profiles from it, runtime and validate check every feed
with it. It knows names, dtypes and shapes, not what the tensors mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from draftrt.dtypes import BY_NAME
from draftrt.errors import FeedError, SpecError

# What stages call the tensors that they hand each other.
ANCHOR, TARGET_HIDDEN, CONTEXT_LENGTH = "anchor", "target_hidden", "context_length"
INPUT_IDS, LOGIT_ROWS, COMMIT_ROWS = "input_ids", "logit_rows", "commit_rows"
DRAFT_IDS, CONFIDENCE = "draft_ids", "confidence"
NEXT_IDS, LOGITS, FEATURES = "next_ids", "logits", "features"
PAST, PRESENT = "past_", "present_"  # how a cache's name begins, as an input and as an output


def cache_names(beginning: str, layer: int) -> tuple[str, str]:
    """Return the names of a layer's keys and values; `PAST` and `PRESENT` are the beginnings."""
    return f"{beginning}key_{layer}", f"{beginning}value_{layer}"


class ArrayLike(Protocol):
    """Anything with a NumPy-style shape and dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""

    @property
    def dtype(self) -> object:
        """Element type; ``str()`` of it is a NumPy name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DimRange:
    """Range of one symbolic size.

    Attributes:
        min: smallest size, at least 1.
        opt: size that plans are tuned for.
        max: largest size.
    """

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        """Refuse a range that is not 1 <= min <= opt <= max."""
        if not 1 <= self.min <= self.opt <= self.max:
            raise SpecError(
                f"dimension range must satisfy 1 <= min <= opt <= max, got "
                f"{self.min}, {self.opt}, {self.max}",
                hint="raise --max-context or lower the optimum",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output of a graph.

    Attributes:
        name: its name in the ONNX file.
        dtype: its NumPy-style name; see `draftrt.dtypes`.
        shape: sizes; a string names an entry of `Signature.dimensions`.
        alias: for an output, the input whose buffer it must share (caches updated in place).
        becomes: for an output, the input that it is in the next call, in another buffer (states:
            a call that fails leaves them as they were).
        about: one line for people.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    alias: str | None = None
    becomes: str | None = None
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs of one graph, in graph order.

    Attributes:
        inputs: what the caller feeds.
        outputs: what the graph returns.
        dimensions: range of each symbolic size used in the shapes.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dimensions: dict[str, DimRange] = field(default_factory=dict)

    def input(self, name: str) -> TensorSpec:
        """Return the input called ``name``.

        Raises:
            FeedError: no such input; the message lists the valid names.
        """
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor
        raise FeedError(f"no input {name!r}; the graph has {[t.name for t in self.inputs]}")

    def output_names(self) -> tuple[str, ...]:
        """Return the names of the outputs in graph order."""
        return tuple(tensor.name for tensor in self.outputs)


def cache_specs(signature: Signature) -> tuple[TensorSpec, ...]:
    """Return the inputs that are caches updated in place, in graph order."""
    aliased = {tensor.alias for tensor in signature.outputs if tensor.alias}
    return tuple(tensor for tensor in signature.inputs if tensor.name in aliased)


def state_specs(signature: Signature) -> tuple[TensorSpec, ...]:
    """Return the inputs that are states: an output of the call before, in another buffer."""
    carried = {tensor.becomes for tensor in signature.outputs if tensor.becomes}
    return tuple(tensor for tensor in signature.inputs if tensor.name in carried)


def cache_bytes(signature: Signature) -> int:
    """Return the size of all caches of a graph, which grow with its context."""
    return _bytes(cache_specs(signature))


def state_bytes(signature: Signature) -> int:
    """Return the size of all states of a graph, whatever its context; a session holds two."""
    return 2 * _bytes(state_specs(signature))


def _bytes(tensors: Iterable[TensorSpec]) -> int:
    return sum(
        BY_NAME[tensor.dtype].itemsize * math.prod(int(size) for size in tensor.shape)
        for tensor in tensors
    )


def check_feeds(
    signature: Signature, feeds: Mapping[str, ArrayLike], hints: Mapping[str, str] | None = None
) -> None:
    """Check names, dtypes and shapes of all feeds against the signature.

    Args:
        signature: the graph's table.
        feeds: input name to array; every input must be present.
        hints: input name to the likely cause of a wrong shape, used as the error's hint.

    Raises:
        FeedError: one error that lists every feed that does not fit.
    """
    known = {tensor.name for tensor in signature.inputs}
    problems = [f"unknown input {name!r}" for name in feeds if name not in known]
    causes = []
    for tensor in signature.inputs:
        array = feeds.get(tensor.name)
        if array is None:
            problems.append(f"{tensor.name}: missing")
            continue
        if str(array.dtype) != tensor.dtype:
            problems.append(f"{tensor.name}: got dtype {array.dtype}, expected {tensor.dtype}")
        if not _fits(tensor.shape, tuple(array.shape), signature.dimensions):
            problems.append(
                f"{tensor.name}: got shape {list(array.shape)}, expected "
                f"{describe_shape(tensor.shape, signature.dimensions)}"
            )
            if hints and tensor.name in hints:
                causes.append(hints[tensor.name])
    if problems:
        raise FeedError(
            "feeds do not fit the graph's signature: " + "; ".join(problems), hint="; ".join(causes)
        )


def describe_shape(shape: tuple[int | str, ...], dimensions: Mapping[str, DimRange]) -> str:
    """Return a shape as text, symbolic sizes with their range: ``[1, T (1..4080), 288]``."""

    def one(size: int | str) -> str:
        if isinstance(size, int):
            return str(size)
        return f"{size} ({dimensions[size].min}..{dimensions[size].max})"

    return "[" + ", ".join(one(size) for size in shape) + "]"


def _fits(
    expected: tuple[int | str, ...], got: tuple[int, ...], dimensions: Mapping[str, DimRange]
) -> bool:
    if len(expected) != len(got):
        return False
    for want, have in zip(expected, got, strict=True):
        if isinstance(want, int):
            if want != have:
                return False
        elif not dimensions[want].min <= have <= dimensions[want].max:
            return False
    return True


LARGEST_BLOCK = 64  # rows a target verifies in one call, at most

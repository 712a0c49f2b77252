"""A checkpoint with quantised weights to the tensors that they stand for, unread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftrt.dtypes import FLOATS
from draftrt.errors import CheckpointError, DraftrtError, UnsupportedError
from draftrt.export.checkpoint.quantized import autoround, awq, compressed_tensors, gptq
from draftrt.export.checkpoint.quantized.float_codes import (
    EXPERTS,
    fp8_reader,
    modelopt_reader,
    read_experts,
)
from draftrt.export.checkpoint.quantized.linear import LinearError, StoredLinear, weight_of
from draftrt.export.checkpoint.quantized.notes import left_out, not_kept
from draftrt.export.checkpoint.quantized.settings import Settings, settings_of, stated
from draftrt.export.checkpoint.tensors import ComputedRef, TensorRef

if TYPE_CHECKING:
    import torch

Reader = Callable[[str, Mapping[str, TensorRef]], StoredLinear]
READERS: Mapping[str, Callable[[Settings], Reader]] = {
    "gptq": gptq.reader,
    "awq": awq.reader,
    "auto-round": autoround.reader,
    "compressed-tensors": compressed_tensors.reader,
    "fp8": fp8_reader,
    "modelopt": modelopt_reader,
    "mxfp4": lambda settings: _no_linear,
}
WAY_OUT = "give the publisher's unquantised checkpoint (bf16); draftrt quantises graphs itself"
OBJECTS = {"torchao": "tensor objects of torchao", "bitsandbytes": "states of bitsandbytes"}
CODES = ("qweight", "weight_packed")
PARTS = (
    *CODES,
    "qzeros",
    "scales",
    "g_idx",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "weight_zero_point",
    "weight_g_idx",
    "weight_shape",
    "pre_quant_scale",
)


@dataclass(frozen=True, slots=True)
class DecodedTensors:
    """A checkpoint's tensors with every quantised weight as what it stands for.

    Attributes:
        tensors: name to tensor; codes, scales and what belongs to them are not among them.
        linears: the weights' names to what stores them.
        notes: what of the publisher's quantisation is not kept, one sentence each.
        findings: what cannot be read.
        is_stated: the config or a file beside it speaks of quantisation.
    """

    tensors: Mapping[str, TensorRef]
    linears: Mapping[str, StoredLinear] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    findings: tuple[DraftrtError, ...] = ()
    is_stated: bool = False

    def layouts(self) -> dict[str, int]:
        """Return the layouts in words, each with the number of weights in it."""
        return dict(Counter(linear.describe() for linear in self.linears.values()))


def decode(
    folder: Path, config: Mapping[str, Any], refs: Mapping[str, TensorRef]
) -> DecodedTensors:
    """Read how a checkpoint's weights are stored; no weight is read.

    Args:
        folder: the checkpoint.
        config: its config.json.
        refs: its tensors by name.
    """
    try:
        found = stated(folder, config)
        if not found:
            return DecodedTensors(refs)
        settings = settings_of(found)
        reader = _reader(settings)
    except DraftrtError as error:
        return DecodedTensors(refs, findings=(error,), is_stated=True)
    tensors, modules, dropped = _sorted(refs)
    linears: dict[str, StoredLinear] = {}
    faults: dict[str, list[LinearError]] = {}
    for name, parts in modules.items():
        try:
            _check(name, parts, settings)
            linear = reader(name, parts)
            tensors[f"{name}.weight"] = weight_of(linear)
            linears[f"{name}.weight"] = linear
        except LinearError as fault:
            faults.setdefault(fault.cause, []).append(fault)
        except DraftrtError as error:
            return DecodedTensors(refs, findings=(error,), is_stated=True)
    _experts(tensors, faults)
    findings = [_finding(group) for group in faults.values()]
    if not modules and refs and not findings and len(tensors) == len(refs):
        findings.append(
            CheckpointError(
                f"{settings.where} names {settings.method}, and no tensor is quantised",
                hint="the config is that of another checkpoint; if the weights are as they were, "
                f"remove {settings.where}",
            )
        )
    notes = tuple(not_kept(settings, dropped))
    return DecodedTensors(tensors, linears, notes, tuple(findings), is_stated=True)


def _reader(settings: Settings) -> Reader:
    """Return what reads a module.

    Raises:
        UnsupportedError: names a method that is not read, or a setting that is not.
    """
    if settings.method in READERS:
        return READERS[settings.method](settings)
    table = settings.table
    if {"bits", "group_size"} <= set(table) and not settings.method:
        raise UnsupportedError(
            f"quantised weights (MLX, {table['bits']!s:.8} bits) are not supported: "
            f"{settings.where}",
            hint=WAY_OUT,
        )
    known = ", ".join(READERS)
    got = f"{settings.method!s:.40}" or "missing"
    what = next((text for key, text in OBJECTS.items() if key in settings.method), "")
    why = f"; the checkpoint holds {what}, not codes and scales" if what else ""
    raise UnsupportedError(
        f"{settings.where}.quant_method {got} is not read{why}; read are {known}", hint=WAY_OUT
    )


def _sorted(
    refs: Mapping[str, TensorRef],
) -> tuple[dict[str, TensorRef], dict[str, dict[str, TensorRef]], list[str]]:
    """Return tensors that are not quantised, the tensors of modules, and names left out."""
    modules: dict[str, dict[str, TensorRef]] = {}
    dropped = []
    for name, ref in refs.items():
        module, _, last = name.rpartition(".")
        if left_out(last):
            dropped.append(name)
        elif module and (last in PARTS or (last == "weight" and ref.dtype not in FLOATS)):
            modules.setdefault(module, {})[last] = ref
    for module, parts in modules.items():
        weight = refs.get(f"{module}.weight")
        if weight is not None:
            parts["weight"] = weight
    used = {f"{module}.{last}" for module, parts in modules.items() for last in parts}
    gone = used | set(dropped)
    return {name: ref for name, ref in refs.items() if name not in gone}, modules, dropped


def _check(name: str, parts: Mapping[str, TensorRef], settings: Settings) -> None:
    """Refuse a module that is stored twice, without codes, or although it is to be left.

    Raises:
        LinearError: says which.
    """
    codes = [key for key in (*CODES, "weight") if key in parts]
    if not codes:
        raise LinearError(
            "no codes",
            f"{name} has {', '.join(sorted(parts))} and no codes: the checkpoint is incomplete",
            "download it again, or take the publisher's own files",
        )
    if len(codes) > 1:
        raise LinearError(
            "stored twice",
            f"{name} is stored twice: {' and '.join(codes)}",
            "which of them is meant is not said; remove the other",
        )
    if codes == ["weight"] and parts["weight"].dtype in FLOATS:
        raise LinearError(
            "scales of floats",
            f"{name}.weight is {parts['weight'].dtype}, and there are "
            f"{', '.join(sorted(set(parts) - {'weight'}))} beside it: got no codes",
            "the checkpoint was saved before it was quantised, or holds parts of two",
        )
    entry = settings.skips(name)
    if entry:
        raise LinearError(
            "skipped",
            f"{name} is stored with codes, and {settings.where} says that it is not quantised "
            f"({entry})",
            "the config is that of another checkpoint",
        )


def _experts(tensors: dict[str, TensorRef], faults: dict[str, list[LinearError]]) -> None:
    """Let the experts of gpt-oss be what they stand for, [experts, in, out]."""
    first, second = EXPERTS
    for blocks in [name for name in tensors if name.endswith(first)]:
        name = blocks.removesuffix(first)
        scales = tensors.get(name + second)
        try:
            if scales is None:
                raise LinearError(
                    "no scales", f"{name} has {blocks} and no scales ({name}{second})"
                )
            linear = read_experts(name, tensors[blocks], scales)
        except LinearError as fault:
            faults.setdefault(fault.cause, []).append(fault)
            continue
        count, out = tensors[blocks].shape[:2]
        del tensors[blocks], tensors[name + second]
        width = linear.shape[1]
        compute = _computing(linear, (count, out, width))
        tensors[name] = ComputedRef(name, "float32", (count, width, out), compute=compute)


def _computing(linear: StoredLinear, shape: tuple[int, int, int]) -> Callable[[], torch.Tensor]:
    def compute() -> torch.Tensor:
        import torch

        weight = linear.weight(0, linear.shape[0]).reshape(shape)
        return torch.from_numpy(weight).transpose(1, 2).contiguous()

    return compute


def _no_linear(name: str, parts: Mapping[str, TensorRef]) -> StoredLinear:
    raise LinearError(
        "linear", f"{name}: mxfp4 stores experts alone, got {', '.join(sorted(parts))}"
    )


def _finding(group: list[LinearError]) -> CheckpointError:
    """Return one finding for modules that are wrong for one reason."""
    more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
    return CheckpointError(f"{group[0].message}{more}", hint=group[0].hint)

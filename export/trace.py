"""A module with placeholder weights to an ONNX graph; knows signatures, not models."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from draftrt.errors import ExportError
from draftrt.export.ops import Profile
from draftrt.signature import Signature

TORCH = {
    "int64": torch.int64,
    "int32": torch.int32,
    "bool": torch.bool,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
EXAMPLE_SIZES = (5, 41, 23)  # distinct, so that no two symbols are taken for one
STANDARD = ("", "ai.onnx")


def trace(module: nn.Module, signature: Signature, profile: Profile) -> Any:
    """Trace ``module`` over example inputs of the signature's shapes.

    Args:
        module: takes the inputs in order, returns the outputs in order.
        signature: inputs, outputs and ranges of the symbolic sizes.
        profile: operators allowed; decides the opset.

    Returns:
        An ``onnx_ir.Model`` whose initialisers carry the module's parameter names.

    Raises:
        ExportError: the exporter failed, or used an operator outside the standard domain.
    """
    sizes = {
        name: torch.export.Dim(name, min=span.min, max=span.max)
        for name, span in signature.dimensions.items()
    }
    chosen = {
        name: min(span.max, max(span.min, size))
        for (name, span), size in zip(signature.dimensions.items(), EXAMPLE_SIZES, strict=False)
    }
    examples = tuple(
        _example([chosen.get(str(size), size) for size in tensor.shape], TORCH[tensor.dtype])
        for tensor in signature.inputs
    )
    dynamic = tuple(
        {axis: sizes[size] for axis, size in enumerate(tensor.shape) if isinstance(size, str)}
        for tensor in signature.inputs
    )
    model = _export(module, examples, dynamic, signature, profile)
    foreign = sorted(
        {
            f"{node.domain}::{node.op_type}"
            for node in model.graph.all_nodes()
            if node.domain not in STANDARD
        }
    )
    if foreign:
        raise ExportError(f"graph uses operators outside the ONNX standard: {foreign}")
    model.producer_name = "draftrt"
    return model


def _example(sizes: list[Any], dtype: torch.dtype) -> Tensor:
    if len(sizes) > 1:
        return torch.zeros(1, dtype=dtype).expand(*sizes)
    return torch.zeros(sizes, dtype=dtype)


def _export(
    module: nn.Module,
    examples: tuple[Tensor, ...],
    dynamic: Any,
    signature: Signature,
    profile: Profile,
) -> Any:
    leading, caches = 0, len(signature.inputs)
    while leading < caches and signature.inputs[leading].name.split("_")[0] != "past":
        leading += 1
    shapes = (
        *dynamic[:leading],
        tuple(dynamic[leading:]),
    )  # *caches is one argument to the exporter
    quiet = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in quiet]
    try:
        for logger in quiet:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                examples,
                dynamo=True,
                opset_version=profile.opset,
                dynamic_shapes=shapes,
                input_names=[tensor.name for tensor in signature.inputs],
                output_names=list(signature.output_names()),
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        raise ExportError(
            f"torch.onnx.export failed: {error!s:.600}",
            hint="this is a defect of draftrt or of the installed torch; report it with the "
            "output of `draftrt inspect`",
        ) from error
    finally:
        for logger, level in zip(quiet, levels, strict=True):
            logger.setLevel(level)
    if program is None:
        raise ExportError("torch.onnx.export returned no program")
    return program.model

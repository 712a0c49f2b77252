"""Which SMs each backend builds for, and what arithmetic each SM runs.

The tables hold what the TensorRT-RTX 1.7 builder and the TensorRT documentation say. Nothing here
looks at a graph or at this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from draftrt import backends
from draftrt.errors import DraftrtError, UnsupportedError
from draftrt.quantization import Part, Scheme
from draftrt.spec import Precision


class Backend(str, Enum):
    """The two builders; they share one programming interface."""

    TENSORRT_RTX = backends.TENSORRT_RTX
    TENSORRT = backends.TENSORRT

    @property
    def module(self) -> str:
        """Python module."""
        return backends.MODULES[self.value]


class Feature(str, Enum):
    """Arithmetic that some SMs lack; the value is its name in messages."""

    FP32_MATMUL = "float32 matrix product"
    BF16 = "bfloat16"
    FP8 = "float8"
    FP4 = "float4"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFacts:
    """What a backend builds for.

    Attributes:
        sms: compute capabilities it accepts, ascending.
        needs_gpu: whether it builds only for a GPU that is in the machine.
        first_sm: feature to the lowest SM that runs it.
    """

    sms: tuple[int, ...]
    needs_gpu: bool
    first_sm: Mapping[Feature, int]


FACTS: Mapping[Backend, BackendFacts] = {
    Backend.TENSORRT_RTX: BackendFacts(
        sms=(75, 80, 86, 89, 120, 121),
        needs_gpu=False,
        first_sm={
            Feature.FP32_MATMUL: 80,
            Feature.BF16: 80,
            Feature.FP8: 89,
            Feature.FP4: 120,
        },
    ),
    Backend.TENSORRT: BackendFacts(
        sms=(75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121),
        needs_gpu=True,
        first_sm={
            Feature.FP32_MATMUL: 75,
            Feature.BF16: 80,
            Feature.FP8: 89,
            Feature.FP4: 100,
        },
    ),
}

PRECISION_FEATURES: Mapping[Precision, tuple[Feature, ...]] = {
    Precision.FP32: (Feature.FP32_MATMUL,),
    Precision.FP16: (),
    Precision.BF16: (Feature.BF16,),
}
SCHEME_FEATURES: Mapping[Scheme, tuple[Feature, ...]] = {
    Scheme.INT8: (),
    Scheme.INT4: (),
    Scheme.FP8: (Feature.FP8,),
}


def sm_findings(backend: Backend, sms: Sequence[int], device: str = "") -> list[DraftrtError]:
    """Return one finding for each SM that the backend does not build for.

    Args:
        backend: the builder.
        sms: compute capabilities asked for.
        device: name of the device whose SM it is, where no SM was given.
    """
    facts = FACTS[backend]
    valid = ", ".join(str(sm) for sm in facts.sms)
    findings: list[DraftrtError] = []
    for sm in sms:
        if sm in facts.sms:
            continue
        hint = _other_device(device) if device else f"choose --sm from {valid}"
        if backend is Backend.TENSORRT_RTX and sm in FACTS[Backend.TENSORRT].sms:
            hint += (
                f"; {device or f'SM{sm}'} needs --backend tensorrt, on a machine with such a GPU"
            )
        findings.append(
            UnsupportedError(
                f"{backend.value}: got SM{sm}{f' of {device}' if device else ''}, expected one of "
                f"{valid}",
                hint=hint,
            )
        )
    return findings


def precision_findings(
    backend: Backend, sms: Sequence[int], precision: Precision, device: str = ""
) -> list[DraftrtError]:
    """Return findings for SMs that cannot run a graph of this precision."""
    where = dict.fromkeys(PRECISION_FEATURES[precision], f"a {precision.value} graph")
    return feature_findings(backend, sms, where, device)


def scheme_findings(
    backend: Backend, sms: Sequence[int], quantization: Mapping[Part, Scheme], device: str = ""
) -> list[DraftrtError]:
    """Return findings for SMs that cannot run weights quantised so."""
    where: dict[Feature, str] = {}
    for part, scheme in quantization.items():
        for feature in SCHEME_FEATURES[scheme]:
            where.setdefault(feature, f"{part.value} in {scheme.value}")
    return feature_findings(backend, sms, where, device)


def request_findings(
    backend: Backend,
    sms: Sequence[int],
    precision: Precision,
    quantization: Mapping[Part, Scheme],
    device: str = "",
) -> list[DraftrtError]:
    """Return findings for SMs that the backend does not build for or that lack the arithmetic."""
    return (
        sm_findings(backend, sms, device)
        + precision_findings(backend, sms, precision, device)
        + scheme_findings(backend, sms, quantization, device)
    )


def feature_findings(
    backend: Backend, sms: Iterable[int], where: Mapping[Feature, str], device: str = ""
) -> list[DraftrtError]:
    """Return one finding for each feature that some SM lacks.

    Args:
        backend: the builder.
        sms: compute capabilities asked for.
        where: each feature in use to the place that uses it, as text for people.
        device: name of the device whose SM it is, where no SM was given.
    """
    findings: list[DraftrtError] = []
    for feature, place in where.items():
        first = FACTS[backend].first_sm[feature]
        lacking = sorted(sm for sm in sms if sm < first)
        if lacking:
            names = ", ".join(f"SM{sm}" for sm in lacking)
            findings.append(
                UnsupportedError(
                    f"{place} needs {feature.value}: got {names}, {backend.value} runs it from "
                    f"SM{first} on",
                    hint=(_other_device(device) if device else f"drop {names} from --sm")
                    + _other_precision(feature)
                    + _other_backend(backend, feature, lacking),
                )
            )
    return findings


def _other_device(device: str) -> str:
    return f"choose another --device than {device}"


def _other_backend(backend: Backend, feature: Feature, sms: Sequence[int]) -> str:
    other = FACTS[Backend.TENSORRT]
    if backend is Backend.TENSORRT or any(sm < other.first_sm[feature] for sm in sms):
        return ""
    return ", or use --backend tensorrt, on a machine with such a GPU"


def _other_precision(feature: Feature) -> str:
    if feature is Feature.BF16:
        return ", or export the graph with --precision fp16"
    if feature is Feature.FP8:
        return ", or export the graph with --quantize int8"
    return ""

"""Named boards and cards: SM, memory, bandwidth, and which builder reaches them.

Figures are the vendor's data sheets': memory as sold (10^9 bytes for discrete cards would differ by
less than the reserve), bandwidth at the highest power mode. Nothing here looks at this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draftrt.engines.capabilities import FACTS, PRECISION_FEATURES, Backend, Feature
from draftrt.errors import ChoiceError
from draftrt.spec import Precision

GIB = 2**30
# Not there for models: the driver's context and a desktop, or with shared memory the system too.
DISCRETE_RESERVE_BYTES = 700 * 2**20
SHARED_RESERVE_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A board or card.

    Attributes:
        name: as given to ``--device``.
        sm: compute capability, as 86, 89, 120.
        memory_bytes: memory the GPU can use, as sold.
        bandwidth: bytes a second between the GPU and that memory.
        is_shared: whether the CPU lives in the same memory.
    """

    name: str
    sm: int
    memory_bytes: int
    bandwidth: float
    is_shared: bool = False

    @property
    def usable_bytes(self) -> int:
        """Memory that is left for weights, caches and scratch."""
        reserve = SHARED_RESERVE_BYTES if self.is_shared else DISCRETE_RESERVE_BYTES
        return self.memory_bytes - reserve

    def builders(self, precision: Precision) -> tuple[Backend, ...]:
        """Return the builders that make plans of this precision for it.

        TensorRT-RTX does so on any machine, TensorRT on the device itself.
        """
        # Whatever the precision, a draft graph has float32 products: `fc` and the heads.
        wanted = (Feature.FP32_MATMUL, *PRECISION_FEATURES[precision])
        return tuple(
            backend
            for backend, facts in FACTS.items()
            if self.sm in facts.sms and all(self.sm >= facts.first_sm[one] for one in wanted)
        )


def _table(*rows: tuple[str, int, int, float, bool]) -> dict[str, Device]:
    return {
        name: Device(
            name=name,
            sm=sm,
            memory_bytes=gib * GIB,
            bandwidth=bandwidth * 1e9,
            is_shared=is_shared,
        )
        for name, sm, gib, bandwidth, is_shared in rows
    }


DEVICES: Mapping[str, Device] = _table(
    ("orin-nano-8gb", 87, 8, 102, True),
    ("orin-nx-8gb", 87, 8, 102, True),
    ("orin-nx-16gb", 87, 16, 102, True),
    ("agx-orin-32gb", 87, 32, 204, True),
    ("agx-orin-64gb", 87, 64, 204, True),
    ("thor", 110, 128, 273, True),
    ("dgx-spark", 121, 128, 273, True),
    ("t4", 75, 16, 320, False),
    ("a10", 86, 24, 600, False),
    ("l4", 89, 24, 300, False),
    ("rtx-3060", 86, 12, 360, False),
    ("rtx-3090", 86, 24, 936, False),
    ("rtx-4060", 89, 8, 272, False),
    ("rtx-4060-ti-16gb", 89, 16, 288, False),
    ("rtx-4070", 89, 12, 504, False),
    ("rtx-4080", 89, 16, 717, False),
    ("rtx-4090", 89, 24, 1008, False),
    ("rtx-5060", 120, 8, 448, False),
    ("rtx-5060-ti-16gb", 120, 16, 448, False),
    ("rtx-5070", 120, 12, 672, False),
    ("rtx-5070-ti", 120, 16, 896, False),
    ("rtx-5080", 120, 16, 960, False),
    ("rtx-5090", 120, 32, 1792, False),
    ("rtx-pro-6000", 120, 96, 1792, False),
    ("h200", 90, 139, 4800, False),
)


def find_device(name: str) -> Device:
    """Return a device by its name, in any case and with spaces or dashes.

    Raises:
        ChoiceError: not in the table; lists it.
    """
    key = name.strip().lower().replace(" ", "-").replace("_", "-")
    if key not in DEVICES:
        raise ChoiceError(
            f"--device {name!r} is not known, expected one of {', '.join(DEVICES)}",
            hint="take the one with the same SM and at most the same memory",
        )
    return DEVICES[key]

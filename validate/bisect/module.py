"""What a PyTorch module computes on the way: its values at weights, caches, masks and choices.

The module is called as it is; the few PyTorch functions that drafters consist of are watched while
it runs. Values are named by the weight they meet, so that the nodes of a graph that meet the same
weight can be found without knowing any model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from draftrt.export.models.drafter import Drafter

INTO, OUT = "into", "out of"
KEYS, VALUES, QUERY, MASK = "cached keys", "cached values", "rotated queries", "mask"
CHOICE = "choice"


@dataclass(frozen=True, slots=True, order=True)
class RecordedPlace:
    """Where a value is.

    Attributes:
        name: the weight it meets, or `KEYS`, `VALUES`, `QUERY`, `MASK`, `CHOICE`.
        number: which of several meetings; of caches, queries and masks the layer.
        side: `INTO` or `OUT` of the weight's operator; empty without a weight.
    """

    name: str
    number: int
    side: str = ""

    @property
    def layer(self) -> int | None:
        """The decoder layer; None outside the layers."""
        if self.name in (KEYS, VALUES, QUERY, MASK):
            return self.number
        parts = self.name.split(".")
        return int(parts[1]) if parts[0] == "layers" else None

    @property
    def step(self) -> str:
        """What happens there, without the layer, as ``self_attn.q_norm``."""
        name = self.name.removesuffix(".weight")
        return name.split(".", 2)[2] if name.startswith("layers.") else name

    def __str__(self) -> str:
        where = "" if self.layer is None else f"layer {self.layer}, "
        what = f"{self.side} {self.step}" if self.side else self.step
        return f"{where}{what}" + (f" (draft {self.number})" if self.layer is None else "")


Values = dict[RecordedPlace, NDArray[Any]]


@contextmanager
def watched(module: Drafter) -> Iterator[Values]:
    """Give a table that fills with the module's values, in the order they come, while it runs."""
    from torch.overrides import TorchFunctionMode

    seen = PlaceRecorder(module)

    class Watch(TorchFunctionMode):
        """Hands every PyTorch call to the recorder, after the call."""

        def __torch_function__(
            self,
            func: Callable[..., Any],
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            seen.note(func, args, kwargs or {}, out)
            return out

    with Watch():
        yield seen.values


class PlaceRecorder:
    """Turns calls into named values.

    Attributes:
        values: place to value, in order.
    """

    def __init__(self, module: Drafter) -> None:
        import torch
        import torch.nn.functional as F

        self.values: Values = {}
        self._names = {id(value): name for name, value in module.named_parameters()}
        # A weight that was cast to the type it has is another object over the same memory.
        self._addresses = {value.data_ptr(): name for name, value in module.named_parameters()}
        self._scale = module.spec.attention_scale
        self._counts: dict[str, int] = {}
        self._handlers: dict[Any, Callable[[tuple[Any, ...], Any], None]] = {
            F.linear: self._product,
            F.rms_norm: self._norm,
            F.embedding: self._product,
            torch.Tensor.index_select: self._look_up,
            torch.Tensor.index_copy: self._write,
            torch.Tensor.matmul: self._scores,
            torch.Tensor.__matmul__: self._scores,
            torch.Tensor.masked_fill: self._masked,
            torch.Tensor.argmax: self._choose,
        }

    def note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        """Record a call, if it is one of those that matter."""
        handler = self._handlers.get(func)
        if handler is not None:
            handler((*args, kwargs["weight"]) if "weight" in kwargs else args, out)

    def _product(self, args: tuple[Any, ...], out: Tensor) -> None:
        self._at(args[1], args[0], out)

    def _norm(self, args: tuple[Any, ...], out: Tensor) -> None:
        self._at(args[2] if len(args) > 2 else None, args[0], out)

    def _look_up(self, args: tuple[Any, ...], out: Tensor) -> None:
        self._at(args[0], args[2], out)

    def _at(self, weight: Tensor | None, value: Tensor, out: Tensor) -> None:
        if weight is None:
            return
        name = self._names.get(id(weight)) or self._addresses.get(weight.data_ptr())
        if name is not None:
            number = self._next(name)
            self._put(RecordedPlace(name, number, INTO), value)
            self._put(RecordedPlace(name, number, OUT), out)

    def _write(self, args: tuple[Any, ...], out: Tensor) -> None:
        """Note a cache that was written: keys and values of each layer in turn."""
        count = self._next("caches")
        self._put(RecordedPlace((KEYS, VALUES)[count % 2], count // 2), out)

    def _scores(self, args: tuple[Any, ...], out: Tensor) -> None:
        """Note the queries: the first product behind a cache write is theirs, already scaled."""
        place = RecordedPlace(QUERY, self._layer())
        if place.number >= 0 and place not in self.values:
            self._put(place, args[0].float() / self._scale)

    def _masked(self, args: tuple[Any, ...], out: Tensor) -> None:
        scores, hidden = args[0], args[1]
        if scores.ndim == 4:
            self._put(RecordedPlace(MASK, self._layer()), ~hidden)

    def _layer(self) -> int:
        """Return the layer whose caches were written last; -1 before the first."""
        return self._counts.get("caches", -1) // 2

    def _choose(self, args: tuple[Any, ...], out: Tensor) -> None:
        place = RecordedPlace(CHOICE, self._next(CHOICE), INTO)
        self._put(place, args[0])
        self._put(replace(place, side=OUT), out)

    def _next(self, name: str) -> int:
        self._counts[name] = self._counts.get(name, -1) + 1
        return self._counts[name]

    def _put(self, place: RecordedPlace, value: Tensor) -> None:
        self.values[place] = to_array(value)


def to_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's content; floats as float32."""
    value = tensor.detach()
    array: NDArray[Any] = (value.float() if value.is_floating_point() else value).numpy().copy()
    return array

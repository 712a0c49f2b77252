"""What a bundle says about itself: graphs, plans, files, facts, provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftrt.errors import SpecError
from draftrt.hub.names import HubOrigin
from draftrt.quantization import PRODUCTS, KeptForm, Part, Prefer, Scheme, part_of
from draftrt.signature import Signature
from draftrt.spec import DecoderSpec, DrafterSpec, Precision, TargetSpec

LINKED = "linked"  # folder of a bundle with the checkpoint files that it points to


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEntry:
    """One ONNX graph of a bundle.

    Attributes:
        file: ONNX file, relative to the bundle.
        data: file of its external data.
        precision: element type of weights and caches.
        profile: ``fixed`` (opset 24, cache written in place) or ``compat`` (opset 20 operators).
        opset: ONNX opset version.
        max_context: rows of each cache, L.
        signature: inputs and outputs.
        flexible: the same graph over the same data with the rows of its caches open (size ``L``),
            for backends that can grow them; empty where there is none.
        quantization: parts whose weights are stored quantised, each with its scheme.
        weight_bytes: bytes of the weights, each once; 0 where an older draftrt wrote the bundle.
        read_bytes: those of them that a call reads whole; of a lookup table it reads some rows.
        borrowed: weights that lie in the data of another graph of the bundle, which has them too,
            to that file.
        kept: weights that are held by the codes that their checkpoint stores, each with its form.
        stored: what the quantised weights of the checkpoint became, in words, with the largest
            change of one.
        sms: compute capabilities of the GPUs that it was exported for; empty for any from 86 on.
        prefer: which of several forms was to hold the checkpoint's codes.
    """

    file: str
    data: str
    precision: Precision
    profile: str
    opset: int
    max_context: int
    signature: Signature
    flexible: str = ""
    quantization: dict[Part, Scheme] = field(default_factory=dict)
    weight_bytes: int = 0
    read_bytes: int = 0
    borrowed: dict[str, str] = field(default_factory=dict)
    kept: dict[str, KeptForm] = field(default_factory=dict)
    stored: tuple[str, ...] = ()
    sms: tuple[int, ...] = ()
    prefer: Prefer | None = None

    @property
    def is_fp8(self) -> bool:
        """Whether all weights of its quantised products are FP8, of which a CPU has none."""
        found = {self.quantization[part] for part in PRODUCTS if part in self.quantization}
        found |= {form.scheme for form in self.kept.values()}
        return found == {Scheme.FP8}

    def schemes(self) -> dict[Part, Scheme]:
        """Return each part with the scheme that asks most of a GPU, kept codes among them."""
        found = dict(self.quantization)
        for name, form in self.kept.items():
            part = part_of(name, is_product=True)
            if part is not None and (part not in found or form.scheme is Scheme.FP8):
                found[part] = form.scheme
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry:
    """One TensorRT plan of a bundle.

    Attributes:
        file: plan file, relative to the bundle.
        log: kept build log.
        graph: name of the graph it was built from.
        graph_sha256: hash of that graph's ONNX file at build time.
        backend: ``tensorrt-rtx`` or ``tensorrt``.
        backend_version: its version.
        sms: compute capabilities it runs on, as 86, 89, 120.
        options: build options as text, name to value.
        build_seconds: wall time of the build.
        peak_rss_bytes: peak resident memory of the build process.
        size_bytes: size of the plan.
        sha256: hash of the plan; empty where an older draftrt built it.
        log_sha256: hash of the log; the same.
    """

    file: str
    log: str
    graph: str
    graph_sha256: str
    backend: str
    backend_version: str
    sms: tuple[int, ...]
    options: dict[str, str]
    build_seconds: float
    peak_rss_bytes: int
    size_bytes: int
    sha256: str = ""
    log_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Size and hash of one file of a bundle."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEntry:
    """A checkpoint file that a bundle points to.

    Attributes:
        source: where it lay when the bundle was written.
        bytes: its size.
        sample_sha256: hash of its size and samples; see `draftrt.files`.
        sha256: hash of all of it; empty where an older draftrt was not asked for it.
    """

    source: str
    bytes: int
    sample_sha256: str
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured times of a round's two calls.

    Attributes:
        draft_ms: one call of the drafter.
        verify_ms: rows of a target call to its time, 1 row among them.
        context: cached tokens they were measured behind.
    """

    draft_ms: float
    verify_ms: Mapping[int, float]
    context: int

    def __post_init__(self) -> None:
        """Refuse a table that cannot be read off.

        Raises:
            SpecError: no entry for 1 row, or a time that is not positive.
        """
        times = [self.draft_ms, *self.verify_ms.values()]
        if 1 not in self.verify_ms or min(self.verify_ms) < 1 or not all(t > 0 for t in times):
            raise SpecError(
                f"costs {self.draft_ms}, {dict(self.verify_ms)}: expected positive times, "
                "1 row among them",
                hint="measure them again with `draftrt bench BUNDLE --calibrate`",
            )

    def verify(self, rows: int) -> float:
        """Return milliseconds of a target call, between measured rows by straight lines."""
        return interpolated(self.verify_ms, rows)

    def rounds(self, num_drafts: int) -> tuple[float, ...]:
        """Return milliseconds of a round that verifies 0, 1, ... ``num_drafts`` drafts."""
        return tuple(self.draft_ms + self.verify(1 + count) for count in range(num_drafts + 1))


def interpolated(times: Mapping[int, float], rows: int) -> float:
    """Return the time of a call with so many rows, between known ones by straight lines.

    Args:
        times: rows to a time; at least one entry.
        rows: of the call.
    """
    if rows in times:
        return times[rows]
    known = sorted(times)
    if len(known) == 1:
        return times[known[0]]
    upper = next((at for at, size in enumerate(known) if size > rows), len(known) - 1)
    upper = max(upper, 1)
    low, high = known[upper - 1], known[upper]
    return times[low] + (times[high] - times[low]) / (high - low) * (rows - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything a bundle says about itself.

    Attributes:
        drafter: the drafter's facts with provenance; None for a target exported alone.
        target: the target's facts with provenance.
        graphs: graph name (``draft``, ``target``) to its entry.
        plans: plan file to its entry.
        files: every other file of the bundle, relative path to size and hash.
        inputs: what it was made from: name to sha256 (draft weights and config, target config).
        tools: package name to version.
        command: command line that wrote it.
        created: UTC time, ISO 8601.
        target_path: folder that the target lay in when the bundle was written.
        costs: what runs the pair to the times measured of it.
        not_kept: graph to what of its checkpoint's own quantisation the bundle does not keep.
        decoder: the target's layers, where its graph was exported.
        links: checkpoint files that the bundle points to, relative path to what is known of them.
        target_samples: tensor of the target's checkpoint to a hash of samples of it; see
            `draftrt.files`. Empty where an older draftrt wrote the bundle.
        origins: ``draft`` and ``target`` to where on the hub each checkpoint came from; one that
            was a folder of its own is not in it.
    """

    drafter: DrafterSpec | None
    target: TargetSpec
    graphs: dict[str, GraphEntry]
    files: dict[str, FileEntry]
    inputs: dict[str, str]
    tools: dict[str, str]
    command: str
    created: str
    plans: dict[str, PlanEntry] = field(default_factory=dict)
    target_path: str = ""
    costs: dict[str, Costs] = field(default_factory=dict)
    not_kept: dict[str, tuple[str, ...]] = field(default_factory=dict)
    decoder: DecoderSpec | None = None
    links: dict[str, LinkEntry] = field(default_factory=dict)
    target_samples: dict[str, str] = field(default_factory=dict)
    origins: dict[str, HubOrigin] = field(default_factory=dict)

"""Opens a bundle for running: which backend, which target, which ids end a text."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from draftrt.backends import ONNXRUNTIME
from draftrt.bundle import Bundle
from draftrt.bundle_files import Verify
from draftrt.codec import read_object, token_ids
from draftrt.errors import BackendError, BundleError, OptionError, printable
from draftrt.files import count_weights, other_tensors
from draftrt.hub.fetch import local_folder
from draftrt.provenance import check_available, in_gb
from draftrt.quantization import DRAFT, TARGET
from draftrt.runtime.backends.base import GraphSession
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.options import whole_number
from draftrt.runtime.decoding.schedule import where
from draftrt.runtime.pair import Pair
from draftrt.runtime.prefix import hash_of_graphs
from draftrt.runtime.targets.base import SNAPSHOT_BYTES, Target
from draftrt.runtime.targets.graph import GraphTarget
from draftrt.runtime.targets.huggingface import HfTarget, check_same_target, say_recomputed
from draftrt.signature import cache_bytes, state_bytes

PORTS = ("graph", "hf")  # how a target runs: the bundle's own graph, or a Hugging Face model


def load(
    path: Path | str,
    *,
    target: Path | str | None = None,
    target_port: str | None = None,
    backend: str = ONNXRUNTIME,
    device: str = "cpu",
    threads: int = 1,
    map_weights: bool = False,
    verify: bool = True,
    snapshot_bytes: int = SNAPSHOT_BYTES,
    prefix: Path | str | None = None,
    ignore_memory: bool = False,
) -> Pair:
    """Load a bundle and its target.

    Args:
        path: the bundle's folder.
        target: the target's Hugging Face folder, or its name on the hub; None takes the one the
            bundle was exported from.
        target_port: one of `PORTS`. None: the bundle's target graph where it has one and no
            ``target`` folder is given, else the Hugging Face model.
        backend: one of `draftrt.backends.BACKENDS`; the two TensorRTs run the bundle's plans on
            the GPU.
        device: where ONNX Runtime and a Hugging Face target run, ``cpu`` or ``cuda``.
        threads: threads of each model; more than the machine's cores slows both down.
        map_weights: let ONNX Runtime multiply with weights where their file is mapped: the least
            memory, tables that both graphs share once, and slower calls.
        verify: compare the content of the bundle's files with its manifest: every byte the first
            time on this machine, samples of large files later; see docs/bundle.md.
        snapshot_bytes: most bytes kept of a target's states, to go back to earlier lengths; 0
            keeps none, and going back computes all tokens again. Other targets need none.
        prefix: file of `Pair.save_prefix`, whose tokens need no computing again.
        ignore_memory: load even what takes more memory than this process can have.

    Raises:
        OptionError: snapshot bytes that are no whole number of at least 0.
        BundleError: no bundle there, its files changed, or it lacks the graph asked for.
        BackendError: a package, provider, plan or the target's folder is missing, or memory is.
        UnsupportedError: a saved prefix for models that do not run on ONNX Runtime.
        SpecError: the folder holds another model than the bundle was exported for.
    """
    most_bytes = _checked_bytes(snapshot_bytes)
    target = None if target is None else local_folder(Path(target))
    bundle = Bundle.open(path, verify=Verify.REMEMBERED if verify else Verify.NONE)
    stop_ids = read_stop_ids(bundle)
    spec = bundle.manifest.drafter
    port = _port(bundle, target, target_port)
    taps = () if spec is None else spec.target_layer_ids
    folder = find_target(bundle, target) if port == "hf" else None
    if folder is not None:
        _warn_of_other_weights(bundle, folder)
    if device == "cpu" and not ignore_memory:
        is_planned = backend != ONNXRUNTIME
        check_memory(bundle, folder, map_weights=map_weights, is_planned=is_planned)

    open_on = partial(
        open_graph,
        bundle,
        backend=backend,
        device=device,
        threads=threads,
        map_weights=map_weights,
    )
    drafter = None if spec is None else DraftSession(spec, open_on(DRAFT))
    model: Target
    if folder is not None:
        model = HfTarget(folder, taps, device=device, threads=threads)
        if slow := say_recomputed(model):
            sys.stderr.write(f"warning: {slow}\n")
    else:
        model = GraphTarget(
            open_on(TARGET),
            bundle.graph("target").max_context,
            least_rows=least_rows(bundle, threads) if map_weights else 1,
            snapshot_bytes=most_bytes,
        )
    name = where(
        port=port, backend=backend, device=device, threads=threads, maps_weights=map_weights
    )
    return _begun(_paired(bundle, model, drafter, stop_ids, name), prefix)


def _paired(
    bundle: Bundle,
    target: Target,
    drafter: DraftSession | None,
    stop_ids: frozenset[int],
    runs_as: str,
) -> Pair:
    facts = bundle.manifest.target
    return Pair(
        target,
        drafter,
        bundle.file("tokenizer"),
        stop_ids,
        runs_as=runs_as,
        costs=bundle.manifest.costs.get(runs_as),
        num_ids=facts.table_rows or facts.vocab_size,
        graphs=hash_of_graphs(bundle),
    )


def _begun(pair: Pair, prefix: Path | str | None) -> Pair:
    """Return a pair with the caches of a saved prefix."""
    if prefix is not None:
        try:
            pair.load_prefix(prefix)
        except BaseException:
            pair.close()
            raise
    return pair


def _checked_bytes(given: int) -> int:
    found = whole_number(given)
    if found is None or found < 0:
        raise OptionError(
            f"snapshot_bytes is {given!r:.200}, expected a whole number of at least 0"
        )
    return found


FLOAT32_BYTES = 4


def check_memory(
    bundle: Bundle, folder: Path | None, *, map_weights: bool = False, is_planned: bool = False
) -> None:
    """Refuse a pair whose models this process has not the memory to hold, before any is loaded.

    Counted are weights and the caches that are there from the start; those of graphs with open
    rows grow with the text.

    Args:
        bundle: the bundle.
        folder: of a Hugging Face target, which is held in float32; None for the target's graph.
        map_weights: whether weights stay in their files.
        is_planned: whether the graphs run as plans, on a device of its own memory.

    Raises:
        BackendError: with the numbers.
    """
    sizes = {}
    for name, entry in {} if is_planned else bundle.manifest.graphs.items():
        if name == DRAFT or folder is None:
            caches = 0 if entry.flexible else cache_bytes(entry.signature)
            weights = 0 if map_weights else bundle.weight_bytes(entry)
            sizes[f"{name} graph"] = weights + caches + state_bytes(entry.signature)
    if folder is not None:
        sizes["target in PyTorch"] = FLOAT32_BYTES * count_weights(folder)
    less = "--map-weights leaves weights in their files; " if sizes and not map_weights else ""
    check_available(
        sum(sizes.values()),
        f"{bundle.path}",
        BackendError,
        counted=", ".join(f"{name} {in_gb(size)}" for name, size in sizes.items()),
        hint=f"take less: {less}`draftrt plan` shows what a pair takes; ignore_memory "
        "(--ignore-memory of `draftrt run` and `bench`) loads it anyway",
    )


def least_rows(bundle: Bundle, threads: int) -> int:
    """Return the fewest rows of a call whose rows are computed as those of any larger call.

    Of weights that are not packed ONNX Runtime's CPU kernels multiply a single row in a way of
    their own, and any larger number of rows alike; of a call each thread may get an even share.

    Raises:
        BackendError: the target's graph answers for fewer rows at once.
    """
    most = bundle.graph("target").signature.dimensions["S"].max
    if 2 * threads > most:
        raise BackendError(
            f"mapped weights on {threads} threads: {2 * threads} rows a call, expected at most "
            f"{most}, or the text could differ from the target's own",
            hint=f"use at most {most // 2} threads, or leave the weights packed",
        )
    return 2 * threads


def _port(bundle: Bundle, target: Path | str | None, wanted: str | None) -> str:
    if wanted not in (None, *PORTS):
        raise BackendError(f"no target port {wanted!r}, there is {list(PORTS)}")
    has_graph = "target" in bundle.manifest.graphs
    if wanted == "graph" and target is not None:
        raise BackendError(
            "target port 'graph' runs the bundle's own target, but a target folder was given",
            hint="leave out --target, or use --target-port hf",
        )
    if wanted == "graph" and not has_graph:
        raise BundleError(
            f"{bundle.path}: holds no target graph",
            hint="export it again with --target-graph, or use --target-port hf",
        )
    return wanted or ("graph" if has_graph and target is None else "hf")


def open_graph(
    bundle: Bundle,
    name: str = "draft",
    *,
    backend: str = ONNXRUNTIME,
    device: str = "cpu",
    threads: int = 1,
    map_weights: bool = False,
) -> GraphSession:
    """Open a graph of a bundle.

    Args:
        bundle: the bundle.
        name: of the graph.
        backend: as for `load`.
        device: for ONNX Runtime, ``cpu`` or ``cuda``.
        threads: for ONNX Runtime, threads of an operator.
        map_weights: for ONNX Runtime on the CPU, see `load`.

    Raises:
        BundleError: the bundle has no such graph, or another one than its manifest describes.
        BackendError: the backend's package is missing, it has no such device or no plan that runs
            here, or it refuses the graph.
    """
    if map_weights and (backend != ONNXRUNTIME or device != "cpu"):
        place = device if backend == ONNXRUNTIME else "cuda"
        raise BackendError(
            f"mapped weights: got {backend} on {place}, expected onnxruntime on cpu",
            hint="leave --map-weights out: a GPU holds its own copy",
        )
    if backend != ONNXRUNTIME:
        from draftrt.runtime.backends.plans import open_plan

        return open_plan(bundle, name, backend)
    from draftrt.runtime.backends.ort import OrtSession

    entry = bundle.graph(name)
    return OrtSession(
        bundle.file(entry.flexible or entry.file),
        entry.signature,
        device=device,
        threads=threads,
        maps_weights=map_weights,
        is_dequantised=device == "cpu" and entry.is_fp8,
        can_grow=bool(entry.flexible),
    )


def find_target(bundle: Bundle, folder: Path | str | None) -> Path:
    """Return the target's folder, given or remembered, after checking that it holds the target.

    Args:
        bundle: the bundle.
        folder: a Hugging Face folder; None takes the one the bundle was exported from.

    Raises:
        BackendError: none given and none remembered or left, or it has no readable config.json.
        SpecError: the folder holds another model than the bundle was exported for.
    """
    if folder is None:
        folder = bundle.manifest.target_path
        if not folder or not Path(folder).is_dir():
            found = f"{folder} is not there" if folder else "none is recorded"
            raise BackendError(
                f"{bundle.path}: no target to run: {found}",
                hint="give its Hugging Face folder with --target",
            )
    check_same_target(Path(folder), bundle.manifest.target)
    return Path(folder)


def _warn_of_other_weights(bundle: Bundle, folder: Path) -> None:
    """Say where a target's folder holds other weights than the one that was exported with."""
    expected = bundle.manifest.target_samples
    if others := other_tensors(folder, expected):
        sys.stderr.write(
            f"warning: {printable(str(folder))}: {len(others)} of {len(expected)} tensors are not "
            f"those of the target that the bundle was exported with, {printable(others[0])} for "
            "one: the text is this target's own, but a drafter made for another one may be "
            "accepted less\n"
        )


def read_stop_ids(bundle: Bundle) -> frozenset[int]:
    """Return the ids that end a text: those of the generation config, else of the target's config.

    Raises:
        BundleError: the generation config cannot be read.
    """
    path = bundle.file("tokenizer") / "generation_config.json"
    if not path.is_file():
        return frozenset(bundle.manifest.target.eos_token_ids)
    try:
        found = token_ids(read_object(path, BundleError).get("eos_token_id"), "eos_token_id")
    except ValueError as error:
        raise BundleError(f"{path}: {error}", hint="export the bundle again") from error
    return frozenset(found or bundle.manifest.target.eos_token_ids)

"""Opens a bundle for running: which backend, which target, which ids end a text."""

from __future__ import annotations

import json
from pathlib import Path

from draftrt.bundle import Bundle
from draftrt.errors import BackendError, BundleError
from draftrt.runtime.backend import GraphSession
from draftrt.runtime.drafter import Drafter
from draftrt.runtime.hf_target import HfTarget, check_same_target
from draftrt.runtime.pair import Pair

TARGET_NOTE = "target_path"  # manifest note: the target's folder on the machine that exported


def load(
    path: Path | str, *, target: Path | str | None = None, device: str = "cpu", threads: int = 1
) -> Pair:
    """Load a bundle and its target.

    Args:
        path: the bundle's folder.
        target: the target's Hugging Face folder; None takes the one the bundle was exported from.
        device: ``cpu`` or ``cuda``.
        threads: threads of each model; more than the machine's cores slows both down.

    Raises:
        BundleError: no bundle there, its files changed, or it holds no drafter.
        BackendError: a package, provider or the target's folder is missing.
        SpecError: the folder holds another model than the bundle was exported for.
    """
    bundle = Bundle.open(path)
    spec = bundle.drafter()
    stop_ids = read_stop_ids(bundle)
    folder = find_target(bundle, target)
    session = open_graph(bundle, "draft", device=device, threads=threads)
    model = HfTarget(folder, spec.target_layer_ids, device=device, threads=threads)
    return Pair(model, Drafter(spec, session), bundle.file("tokenizer"), stop_ids)


def open_graph(
    bundle: Bundle, name: str = "draft", *, device: str = "cpu", threads: int = 1
) -> GraphSession:
    """Open a graph of a bundle on ONNX Runtime.

    Raises:
        BundleError: the bundle has no such graph, or another one than its manifest describes.
        BackendError: onnxruntime is missing, has no such device, or refuses the graph.
    """
    from draftrt.runtime.ort import OrtSession

    entry = bundle.graph(name)
    return OrtSession(bundle.file(entry.file), entry.signature, device=device, threads=threads)


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
        folder = bundle.manifest.notes.get(TARGET_NOTE)
        if not isinstance(folder, str) or not Path(folder).is_dir():
            found = f"{folder} is not there" if isinstance(folder, str) else "none is recorded"
            raise BackendError(
                f"{bundle.path}: no target to run: {found}",
                hint="give its Hugging Face folder with --target",
            )
    check_same_target(Path(folder), bundle.manifest.target)
    return Path(folder)


def read_stop_ids(bundle: Bundle) -> frozenset[int]:
    """Return the ids that end a text: those of the generation config, else of the target's config.

    Raises:
        BundleError: the generation config cannot be read.
    """
    path = bundle.file("tokenizer") / "generation_config.json"
    if not path.is_file():
        return frozenset(bundle.manifest.target.eos_token_ids)
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise BundleError(f"{path}: cannot be read as a JSON object: {error}") from error
    if found is None:
        return frozenset(bundle.manifest.target.eos_token_ids)
    return frozenset([found] if isinstance(found, int) else found)

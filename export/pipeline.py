"""Checkpoint to bundle: check everything, trace, write, check again, and only then keep it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftrt.bundle import GraphEntry, Manifest, hash_files, new_bundle, sha256_of, write_manifest
from draftrt.errors import collect
from draftrt.export.assemble import graph_tensors
from draftrt.export.check import check_file, check_graph
from draftrt.export.drafter import Drafter
from draftrt.export.graph_file import flexible_path, write_graph
from draftrt.export.load import LoadedDrafter, load_drafter
from draftrt.export.ops import Profile
from draftrt.export.signature import CAPACITY, draft_signature
from draftrt.export.target import check_tokenizer, read_target
from draftrt.export.trace import trace
from draftrt.export.weights import placeholders
from draftrt.provenance import command_line, now, tool_versions
from draftrt.spec import Precision

GRAPH = "draft.onnx"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
)
DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What the user chooses about an export.

    Attributes:
        precision: element type of weights and caches.
        profile: operators the graph may use.
        max_context: rows of each cache; None: the declared positions, at most `DEFAULT_CONTEXT`.
        extra_outputs: further outputs of the graph (``logits``, ``hidden``, ...).
        sample_from_anchor: alignment where the config leaves it open.
        ignore_keys: unknown config keys declared to be without effect.
        force: replace an existing bundle.
    """

    precision: Precision = Precision.FP32
    profile: Profile = Profile.FIXED
    max_context: int | None = None
    extra_outputs: tuple[str, ...] = ()
    sample_from_anchor: bool | None = None
    ignore_keys: frozenset[str] = field(default_factory=frozenset)
    force: bool = False


def export_bundle(
    draft: Path,
    target: Path,
    out: Path,
    options: ExportOptions,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Export a drafter into a bundle.

    Args:
        draft: drafter checkpoint.
        target: target checkpoint, with tokenizer.
        out: bundle folder to write.
        options: precision, profile, context.
        report: gets one line a step.

    Raises:
        DraftrtError: anything wrong with the inputs or the result; nothing is left behind.
    """
    model = read_target(target)
    findings, warnings = check_tokenizer(target, model.spec)
    loaded = load_drafter(
        draft, model, sample_from_anchor=options.sample_from_anchor, ignore_keys=options.ignore_keys
    )
    collect(findings)
    for line in (*warnings, *loaded.spec.warnings):
        report(f"warning: {line}")
    with new_bundle(out, force=options.force) as folder:
        entry = write_draft_graph(loaded, folder, options, report)
        _copy_tokenizer(target, folder / "tokenizer")
        write_manifest(
            folder,
            _manifest(loaded, {"draft": entry}, folder, {"target_path": str(target.resolve())}),
        )
    report(f"bundle: {out}")
    return out


def write_draft_graph(
    loaded: LoadedDrafter, folder: Path, options: ExportOptions, report: Callable[[str], None]
) -> GraphEntry:
    """Trace, write and check the draft graph of a checked drafter; return its manifest entry."""
    spec, precision = loaded.spec, options.precision
    context = options.max_context or min(DEFAULT_CONTEXT, spec.rope.max_position_embeddings)
    if context > spec.rope.max_position_embeddings:
        report(
            f"warning: max_context {context} is beyond the {spec.rope.max_position_embeddings} "
            "positions the drafter declares; acceptance may fall there"
        )
    extra = options.extra_outputs
    signature = draft_signature(spec, precision, context, extra)
    flexible = draft_signature(spec, precision, context, extra, is_flexible=True)
    tensors = graph_tensors(spec, loaded.tensors, precision, context)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    module = Drafter(
        spec,
        placeholders(shapes, lambda name: tensors[name].dtype),
        profile=options.profile,
        extra_outputs=options.extra_outputs,
    )
    report(
        f"trace: {spec.family.value}, {spec.num_layers} layers, {precision.value}, "
        f"max_context {context}"
    )
    model = trace(module, flexible, options.profile)
    path = folder / GRAPH
    data = write_graph(model, tensors, path, {CAPACITY: context})
    report(f"write: {GRAPH} and {data.stat().st_size / 1e6:.1f} MB of weights")
    check_file(path, signature)
    check_file(flexible_path(path), flexible)
    for line in check_graph(path, spec, tensors, signature, precision, context):
        report(f"check: {line}")
    return GraphEntry(
        file=GRAPH,
        flexible=flexible_path(path).name,
        data=data.name,
        precision=precision,
        profile=options.profile.value,
        opset=options.profile.opset,
        max_context=context,
        signature=signature,
    )


def _manifest(
    loaded: LoadedDrafter, graphs: dict[str, GraphEntry], folder: Path, notes: dict[str, Any]
) -> Manifest:
    target = loaded.target
    assert target is not None
    inputs = {
        f"draft/{path.name}": sha256_of(path)
        for path in sorted(
            {
                ref.file
                for ref in loaded.tensors.values()
                if ref.file is not None and ref.file.parent == loaded.folder
            }
            | {loaded.folder / "config.json"}
        )
    }
    if target.folder is not None:
        inputs["target/config.json"] = sha256_of(target.folder / "config.json")
    return Manifest(
        drafter=loaded.spec,
        target=target.spec,
        graphs=graphs,
        files=hash_files(folder),
        inputs=inputs,
        tools=tool_versions(),
        command=command_line(),
        created=now(),
        notes=notes,
    )


def _copy_tokenizer(target: Path, folder: Path) -> None:
    folder.mkdir()
    for name in TOKENIZER_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, folder / name)

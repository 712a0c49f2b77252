"""Checkpoint to bundle: check everything, trace, write, check again, and only then keep it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftrt.bundle import GraphEntry, Manifest, hash_files, new_bundle, sha256_of, write_manifest
from draftrt.errors import DraftrtError, SpecError, UnsupportedError, collect
from draftrt.export.assemble import graph_tensors
from draftrt.export.check import check_file, check_graph
from draftrt.export.decoder_config import read_decoder
from draftrt.export.drafter import Drafter, SampledDrafter
from draftrt.export.graph_file import flexible_path, write_graph
from draftrt.export.initialisers import as_stored
from draftrt.export.load import LoadedDrafter, load_drafter
from draftrt.export.ops import Profile
from draftrt.export.quantized_graph import check_quantization
from draftrt.export.signature import CAPACITY, draft_signature
from draftrt.export.target import Target, check_tokenizer, read_target
from draftrt.export.target_graph import write_target_graph
from draftrt.export.trace import trace
from draftrt.export.weights import placeholders
from draftrt.provenance import command_line, now, tool_versions
from draftrt.quantization import DRAFT, TARGET, Quantization
from draftrt.spec import DecoderSpec, Precision

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
        sampled: the drafts can be drawn at a temperature, by noise among the graph's inputs.
        sample_from_anchor: alignment where the config leaves it open.
        ignore_keys: unknown config keys declared to be without effect.
        quantization: graph name (``draft``, ``target``) to the parts whose weights are stored
            quantised.
        target_graph: whether the target's graph is exported too; None: where it can be, and said
            where it cannot.
        force: replace an existing bundle.
    """

    precision: Precision = Precision.FP32
    profile: Profile = Profile.FIXED
    max_context: int | None = None
    extra_outputs: tuple[str, ...] = ()
    sampled: bool = False
    sample_from_anchor: bool | None = None
    ignore_keys: frozenset[str] = field(default_factory=frozenset)
    quantization: Mapping[str, Quantization] = field(default_factory=dict)
    target_graph: bool | None = None
    force: bool = False


Report = Callable[[str], None]


def export_bundle(
    draft: Path | None,
    target: Path,
    out: Path,
    options: ExportOptions,
    report: Report = lambda line: None,
) -> Path:
    """Export a drafter and its target, or a target alone, into a bundle.

    Args:
        draft: drafter checkpoint; None for a target alone.
        target: target checkpoint, with tokenizer.
        out: bundle folder to write.
        options: precision, profile, context.
        report: gets one line a step.

    Raises:
        DraftrtError: anything wrong with the inputs or the result; nothing is left behind.
    """
    model = read_target(target)
    findings, warnings = check_tokenizer(target, model.spec)
    loaded = None
    if draft is not None:
        try:
            loaded = load_drafter(
                draft,
                model,
                sample_from_anchor=options.sample_from_anchor,
                ignore_keys=options.ignore_keys,
            )
        except DraftrtError as error:
            collect([error, *findings])
            raise
        warnings += loaded.spec.warnings
    collect(findings)
    decoder = _decoder(model, options, loaded is None, report)
    for line in warnings:
        report(f"warning: {line}")
    with new_bundle(out, force=options.force) as folder:
        graphs = {}
        context = _max_context(loaded, decoder, options)
        if loaded is not None:
            graphs["draft"] = write_draft_graph(loaded, folder, options, report, context)
        if decoder is not None:
            graphs["target"] = write_target_graph(
                decoder,
                target,
                folder,
                loaded.spec.target_layer_ids if loaded is not None else (),
                precision=options.precision,
                profile=options.profile,
                max_context=context,
                quantization=options.quantization.get(TARGET, {}),
                report=report,
            )
        _copy_tokenizer(target, folder / "tokenizer")
        notes = {"target_path": str(target.resolve())}
        write_manifest(folder, _manifest(model, loaded, decoder, graphs, folder, notes))
    report(f"bundle: {out}")
    return out


def _decoder(
    model: Target, options: ExportOptions, is_alone: bool, report: Report
) -> DecoderSpec | None:
    """Resolve the target's layers; without an explicit wish, an unsupported one is only told."""
    if options.target_graph is False and not is_alone:
        return None
    try:
        return read_decoder(model)
    except (UnsupportedError, SpecError) as error:
        if options.target_graph is True or is_alone:
            raise
        report(f"target graph: left out. {error.message}. The Hugging Face port runs this target.")
        return None


def _max_context(
    loaded: LoadedDrafter | None, decoder: DecoderSpec | None, options: ExportOptions
) -> int:
    declared = [
        spec.rope.max_position_embeddings
        for spec in (loaded.spec if loaded is not None else None, decoder)
        if spec is not None
    ]
    return options.max_context or min(DEFAULT_CONTEXT, *declared)


def write_draft_graph(
    loaded: LoadedDrafter,
    folder: Path,
    options: ExportOptions,
    report: Report,
    max_context: int | None = None,
) -> GraphEntry:
    """Trace, write and check the draft graph of a checked drafter; return its manifest entry."""
    spec, precision = loaded.spec, options.precision
    context = max_context or _max_context(loaded, None, options)
    if context > spec.rope.max_position_embeddings:
        report(
            f"warning: max_context {context} is beyond the {spec.rope.max_position_embeddings} "
            "positions the drafter declares; acceptance may fall there"
        )
    signature, flexible = (
        draft_signature(
            spec,
            precision,
            context,
            options.extra_outputs,
            is_flexible=is_flexible,
            is_sampled=options.sampled,
        )
        for is_flexible in (False, True)
    )
    tensors = graph_tensors(spec, loaded.tensors, precision, context)
    quantization = options.quantization.get(DRAFT, {})
    check_quantization(tensors, quantization, options.profile.opset)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    kind = SampledDrafter if options.sampled else Drafter
    module = kind(
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
    data = write_graph(model, tensors, path, {CAPACITY: context}, quantization)
    report(f"write: {GRAPH} and {data.stat().st_size / 1e6:.1f} MB of weights")
    check_file(path, signature)
    check_file(flexible_path(path), flexible)
    tensors = as_stored(path, tensors)
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
        quantization=dict(quantization),
    )


def _manifest(
    target: Target,
    loaded: LoadedDrafter | None,
    decoder: DecoderSpec | None,
    graphs: dict[str, GraphEntry],
    folder: Path,
    notes: dict[str, Any],
) -> Manifest:
    assert target.folder is not None
    inputs = {}
    if loaded is not None:
        files = {
            ref.file
            for ref in loaded.tensors.values()
            if ref.file is not None and ref.file.parent == loaded.folder
        }
        for path in sorted(files | {loaded.folder / "config.json"}):
            inputs[f"draft/{path.name}"] = sha256_of(path)
    inputs["target/config.json"] = sha256_of(target.folder / "config.json")
    return Manifest(
        drafter=None if loaded is None else loaded.spec,
        target=target.spec,
        graphs=graphs,
        files=hash_files(folder),
        inputs=inputs,
        tools=tool_versions(),
        command=command_line(),
        created=now(),
        notes=notes,
        decoder=decoder,
    )


def _copy_tokenizer(target: Path, folder: Path) -> None:
    folder.mkdir()
    for name in TOKENIZER_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, folder / name)

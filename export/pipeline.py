"""Checkpoint to bundle: check everything, trace, write, check again, and only then keep it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from draftrt.backends import require
from draftrt.bundle import Bundle, hash_files, new_bundle, write_manifest
from draftrt.bundle_files import Verify
from draftrt.errors import ChoiceError, DraftrtError, SpecError, collect
from draftrt.export.check.memory import check_memory
from draftrt.export.checkpoint.decoder import read_decoder, say_left_out, try_decoder
from draftrt.export.checkpoint.drafter import LoadedDrafter, load_drafter
from draftrt.export.checkpoint.target import TargetCheckpoint, read_target
from draftrt.export.checkpoint.target_files import check_target_files, copy_target_files
from draftrt.export.config.keys import OF_TARGET, of_draft, of_target
from draftrt.export.models.signature import draft_signature, target_signature
from draftrt.export.options import ExportOptions, Report, max_context
from draftrt.export.weights.placement import place_draft, place_target
from draftrt.export.weights.storage import OnTick, WeightFiles, weight_files
from draftrt.files import sample_sha256, sample_tensors, sha256_of
from draftrt.hub.fetch import local_folder
from draftrt.hub.names import HubOrigin, origin_of
from draftrt.manifest import GraphEntry, Manifest
from draftrt.provenance import command_line, now, tool_versions
from draftrt.quantization import describe
from draftrt.signature import LARGEST_BLOCK, cache_bytes, state_bytes
from draftrt.spec import DecoderSpec, DrafterSpec


def export_bundle(
    draft: Path | None,
    target: Path,
    out: Path,
    options: ExportOptions,
    report: Report = lambda line: None,
    on_tick: OnTick = lambda progress: None,
) -> Path:
    """Export a drafter and its target, or a target alone, into a bundle.

    Args:
        draft: drafter checkpoint, a folder or a name on the hub (``Path("owner/name")``); None for
            a target alone.
        target: target checkpoint, with tokenizer; the same.
        out: bundle folder to write.
        options: precision, profile, context.
        report: gets one line a step.
        on_tick: called a few times a second while weights are copied and nothing else goes on.

    Raises:
        DraftrtError: anything wrong with the inputs or the result; nothing is left behind.
    """
    require("torch", "onnx", "onnxruntime", what="an export")
    draft, target = local_folder(draft), local_folder(target)
    model = read_target(target, draft=draft)
    findings, warnings = check_target_files(target, model.spec)
    warnings += [f"target: {note}" for note in model.decoded.notes]
    loaded = None
    if draft is not None:
        try:
            loaded = load_drafter(
                draft,
                model,
                sample_from_anchor=options.sample_from_anchor,
                ignore_keys=of_draft(options.ignore_keys),
                family=options.family,
            )
        except DraftrtError as error:
            collect([error, *findings])
            raise
        warnings += loaded.spec.warnings
    collect(findings)
    decoder, left_out = choose_decoder(model, options, None if loaded is None else loaded.spec)
    check_quantised(options, has_draft=loaded is not None, has_target=decoder is not None)
    for line in warnings:
        report(f"warning: {line}")
    context = max_context(options, None if loaded is None else loaded.spec, decoder)
    with (
        new_bundle(out, force=options.force) as folder,
        weight_files(folder, options.weights, on_tick) as files,
    ):
        graphs = _write_graphs(loaded, decoder, target, folder, options, report, context, files)
        copy_target_files(target, folder / "tokenizer")
        write_manifest(folder, _manifest(model, loaded, decoder, graphs, folder, files))
    Bundle.open(out, verify=Verify.NONE).remember()
    report(f"bundle: {out}")
    if decoder is not None and loaded is not None:
        warn_of_quantised_target(options, report)
    if left_out is not None:
        report(f"warning: {say_left_out(left_out)}")
    return out


def _not_kept(model: TargetCheckpoint, loaded: LoadedDrafter | None) -> dict[str, tuple[str, ...]]:
    """Return what of the checkpoints' own quantisation the bundle does not keep."""
    parts = {"target": model.decoded, "draft": None if loaded is None else loaded.decoded}
    return {name: tuple(one.notes) for name, one in parts.items() if one and one.notes}


def check_quantised(options: ExportOptions, *, has_draft: bool, has_target: bool) -> None:
    """Refuse a wish for a graph that is not exported, unless it is one for both graphs.

    Raises:
        SpecError: names the wish.
    """
    exported = {"draft": has_draft, "target": has_target}
    for name, parts in options.quantization.items():
        is_for_both = options.quantization.get("draft") == options.quantization.get("target")
        if parts and not exported[name] and not is_for_both:
            wishes = ", ".join(f"{name}:{part.value}={s.value}" for part, s in parts.items())
            raise SpecError(
                f"--quantize: got {wishes}, but no {name} graph is exported",
                hint=f"leave it out, or export the {name}'s graph too",
            )


def warn_of_quantised_target(options: ExportOptions, report: Report) -> None:
    """Tell that a target stored in fewer bits is another model, and how to quantise less."""
    target, draft = (options.quantization.get(name, {}) for name in ("target", "draft"))
    if not target:
        return
    alone = " ".join(f"--quantize draft:{part.value}={s.value}" for part, s in draft.items())
    way_out = f"; the drafter alone: {alone}" if alone else ""
    report(
        f"warning: the target's weights are quantised too ({describe(target)}): with the drafter "
        "or without, its text is that of the quantised target and may differ from the original's"
        f"{way_out}"
    )


def _write_graphs(
    loaded: LoadedDrafter | None,
    decoder: DecoderSpec | None,
    target: Path,
    folder: Path,
    options: ExportOptions,
    report: Report,
    context: int,
    files: WeightFiles,
) -> dict[str, GraphEntry]:
    """Write the graphs; all weights are placed first, so that they are copied meanwhile."""
    graphs, weights, caches = {}, {}, {}
    taps = () if loaded is None else loaded.spec.target_layer_ids
    if loaded is not None:
        weights["draft"] = place_draft(loaded, options, context, files)
        caches["draft"] = cache_bytes(draft_signature(loaded.spec, options.precision, context))
    if decoder is not None:
        weights["target"] = place_target(decoder, target, options, context, files)
        signature = target_signature(decoder, taps, options.precision, context)
        caches["target"] = cache_bytes(signature) + state_bytes(signature)
    check_memory(weights, caches, context)
    for name, placed in weights.items():
        for part in set(options.quantization.get(name, {})) - set(placed.quantization):
            report(
                f"note: {name}: {part.value} stays in the codes of its checkpoint: --quantize is "
                "for what is not quantised yet"
            )
    if options.hash_all:
        for path in (
            *([] if loaded is None else _own_files(loaded)),
            *files.links.sources.values(),
        ):
            files.hash_input(path)
    # Only now is PyTorch loaded, beside the copying.
    from draftrt.export.write_graphs import write_draft_graph, write_target_graph

    if loaded is not None:
        graphs["draft"] = write_draft_graph(
            loaded, folder, options, report, context, weights["draft"]
        )
    if decoder is not None:
        graphs["target"] = write_target_graph(
            decoder, folder, taps, options, report, context, weights["target"]
        )
    for name, entry in graphs.items():
        for line in entry.stored:
            report(f"{name}: {line}")
    return graphs


def choose_decoder(
    model: TargetCheckpoint, options: ExportOptions, drafter: DrafterSpec | None
) -> tuple[DecoderSpec | None, DraftrtError | None]:
    """Resolve the layers of a target whose graph is exported.

    A target with states carries as many rows as a round of the drafter verifies.

    Returns:
        The layers, None where none is wished; and where one was not demanded and cannot be, why.

    Raises:
        DraftrtError: a graph that is demanded cannot be exported, or a key is named in vain.
    """
    ignore = of_target(options.ignore_keys)
    if options.target_graph is False and drafter is not None:
        if ignore:
            raise ChoiceError(
                f"--ignore-key {', '.join(OF_TARGET + key for key in sorted(ignore))}: the "
                "target's graph is not exported, expected keys of the drafter"
            )
        return None, None
    decoder, left_out = (
        (read_decoder(model, ignore), None)
        if options.target_graph is True or drafter is None
        else try_decoder(model, ignore)
    )
    if decoder is not None and decoder.delta is not None and drafter is not None:
        rows = max(decoder.delta.carried_rows, min(drafter.num_draft_tokens + 1, LARGEST_BLOCK))
        decoder = replace(decoder, delta=replace(decoder.delta, carried_rows=rows))
    return decoder, left_out


def _manifest(
    target: TargetCheckpoint,
    loaded: LoadedDrafter | None,
    decoder: DecoderSpec | None,
    graphs: dict[str, GraphEntry],
    folder: Path,
    weights: WeightFiles,
) -> Manifest:
    assert target.folder is not None
    inputs, hashes = {}, weights.input_hashes()
    if loaded is not None:
        inputs["draft/config.json"] = sha256_of(loaded.folder / "config.json")
        for path in _own_files(loaded):
            if path.resolve() in hashes:
                inputs[f"draft/{path.name}"] = hashes[path.resolve()]
            else:
                inputs[f"draft/{path.name}, sampled"] = sample_sha256(path)
    inputs["target/config.json"] = sha256_of(target.folder / "config.json")
    return Manifest(
        drafter=None if loaded is None else loaded.spec,
        target=target.spec,
        graphs=graphs,
        files=hash_files(folder, weights.entries()),
        inputs=inputs,
        tools=tool_versions(),
        command=command_line(),
        created=now(),
        target_path=str(target.folder.resolve()),
        not_kept=_not_kept(target, loaded),
        decoder=decoder,
        links=weights.links.entries(hashes),
        target_samples=sample_tensors(target.folder),
        origins=_origins(target, loaded),
    )


def _origins(target: TargetCheckpoint, loaded: LoadedDrafter | None) -> dict[str, HubOrigin]:
    """Return where on the hub the checkpoints came from, as far as their folders tell."""
    folders = {"target": target.folder, "draft": None if loaded is None else loaded.folder}
    found = {name: origin_of(folder) for name, folder in folders.items() if folder is not None}
    return {name: origin for name, origin in found.items() if origin is not None}


def _own_files(loaded: LoadedDrafter) -> list[Path]:
    """Return the weight files of the drafter's own checkpoint."""
    files = {file for ref in loaded.tensors.values() for file in ref.files}
    return sorted(file for file in files if file.parent == loaded.folder)

"""Every publisher's tensor names to the canonical ones: one table, shown in docs/formats.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from draftrt.errors import CheckpointError, DraftrtError
from draftrt.export.checkpoint.tensors import TensorRef

RENAMES: tuple[tuple[str, str, str], ...] = (
    # pattern, canonical, whose spelling
    (r"^midlayer\.", "layers.0.", "single-layer drafters"),
    (r"^encoder\.fc\.", "fc.", "Muse"),
    (r"^encoder\.output_norm_enc\.", "hidden_norm.", "Muse"),
    (r"^context_proj\.", "fc.", "TorchSpec"),
    (r"^context_norm\.", "hidden_norm.", "TorchSpec"),
    (r"^final_norm\.", "norm.", "Muse, TorchSpec"),
    (r"^logit_head\.markov_head\.", "markov_head.", "early DSpark"),
    (r"^logit_head\.confidence_head\.", "confidence_head.", "early DSpark"),
    (r"^(markov_w[12]|gate_proj|joint_proj)\.", r"markov_head.\1.", "ModelOpt, NVIDIA"),
    (r"^confidence_proj\.", "confidence_head.proj.", "ModelOpt, NVIDIA"),
    (r"^(markov_head\.markov_w[12])$", r"\1.weight", "tables stored bare"),
    (
        r"^(candidate_selector\.(?:predecessor|successor)_codebook)$",
        r"\1.weight",
        "published DFlash2",
    ),
    (r"^(candidate_selector\.hidden_projection)$", r"\1.weight", "published DFlash2"),
)
IGNORED: tuple[tuple[str, str], ...] = (
    (r"(^|\.)rotary_emb\.", "recomputed from the config"),
    (r"^verifier_(norm|lm_head|embed)", "training only"),
)
REFUSED: tuple[tuple[str, str], ...] = (
    (r"^mask_hidden", "a P-EAGLE mask state"),
    (r"(^|\.)aux_hidden_norms\.", "Laguna's norm of each feature slice"),
    (r"\.self_attn\.g_proj\.", "Laguna's attention gate"),
    (r"^mtp\.", "stages embedded in a DeepSeek-V4 target"),
    (r"\.self_attn\.(kv_a|kv_b|q_a|q_b)_proj", "multi-head latent attention (MLA)"),
    (r"\.mlp\.(experts|gate\.weight|router|shared_expert)", "a mixture of experts (MoE)"),
    (r"\.linear_attn\.|\.kda\.|\.mamba\.", "linear-attention layers"),
)
# tensors of a target that are no part of its text model, by the start of their names
BESIDE_TEXT: tuple[tuple[str, str], ...] = (
    ("model.visual.", "vision"),
    ("model.vision_tower.", "vision"),
    ("model.vision_adapter.", "vision"),
    ("model.vision_projection.", "vision"),
    ("model.embed_vision.", "vision"),
    ("model.audio_tower.", "audio"),
    ("model.embed_audio.", "audio"),
    ("mtp.", "multi-token prediction"),
)
FUSED = (
    (
        re.compile(r"^(layers\.\d+\.self_attn)\.qkv_proj\.(weight|bias)$"),
        ("q_proj", "k_proj", "v_proj"),
    ),
    (re.compile(r"^(layers\.\d+\.mlp)\.gate_up_proj\.(weight|bias)$"), ("gate_proj", "up_proj")),
)


@dataclass(slots=True)
class Canonical:
    """A checkpoint's tensors under canonical names.

    Attributes:
        tensors: canonical name to tensor.
        fused: canonical name to (tensor, part names) still to be cut by row.
        original: canonical name to the checkpoint's own.
        ignored: names left out on purpose, with the reason.
        refused: what is not supported, with the names that show it.
        findings: clashes.
    """

    tensors: dict[str, TensorRef] = field(default_factory=dict)
    fused: dict[str, tuple[TensorRef, tuple[str, ...]]] = field(default_factory=dict)
    original: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    findings: list[DraftrtError] = field(default_factory=list)


def beside_text(names: Iterable[str]) -> dict[str, str]:
    """Return the tensors that are no part of a target's text model, with what they are part of."""
    return {name: what for name in names for start, what in BESIDE_TEXT if name.startswith(start)}


def canonical_name(name: str) -> str:
    """Return the canonical spelling of a tensor's name."""
    name = re.sub(r"^(model\.|draft_model\.)", "", name)
    for pattern, replacement, _ in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def canonicalise(refs: Mapping[str, TensorRef]) -> Canonical:
    """Rename, ignore or refuse every tensor of a drafter's checkpoint."""
    out = Canonical()
    for original, ref in refs.items():
        name = canonical_name(original)
        reason = next((why for pattern, why in IGNORED if re.search(pattern, name)), None)
        refused = next((what for pattern, what in REFUSED if re.search(pattern, name)), None)
        if reason is not None:
            out.ignored[original] = reason
        elif refused is not None:
            out.refused.setdefault(refused, []).append(original)
        elif name in out.tensors or name in out.fused:
            out.findings.append(
                CheckpointError(
                    f"tensors {out.original[name]!r} and {original!r} both mean {name!r}"
                )
            )
        else:
            out.original[name] = original
            _place(out, name, ref)
    return out


def _place(out: Canonical, name: str, ref: TensorRef) -> None:
    for pattern, parts in FUSED:
        match = pattern.match(name)
        if match:
            names = tuple(f"{match.group(1)}.{part}.{match.group(2)}" for part in parts)
            out.fused[name] = (ref, names)
            return
    out.tensors[name] = ref


def cut_fused(names: Canonical, rows_of: Mapping[str, int]) -> set[str]:
    """Cut fused tensors into their parts by rows, in the order q, k, v or gate, up.

    Args:
        names: gets the parts among its tensors and a finding where the rows do not add up.
        rows_of: canonical part name to its rows.

    Returns:
        Parts that could not be cut.
    """
    uncut: set[str] = set()
    for fused, (ref, parts) in names.fused.items():
        sizes = [rows_of.get(part, 0) for part in parts]
        if not ref.shape or sum(sizes) != ref.shape[0] or 0 in sizes:
            names.findings.append(
                CheckpointError(
                    f"tensor {names.original[fused]!r} has shape {list(ref.shape)}, expected "
                    f"{sum(sizes)} rows ({' + '.join(map(str, sizes))})"
                )
            )
            uncut.update(parts)
            continue
        start = 0
        for part, size in zip(parts, sizes, strict=True):
            names.tensors[part] = ref.rows(start, start + size)
            names.original[part] = f"{names.original[fused]} rows {start}..{start + size - 1}"
            start += size
    names.fused.clear()
    return uncut

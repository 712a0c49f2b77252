"""What a bundle holds, as rows for people and as JSON; its manifest only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from draftrt.bundle import Bundle
from draftrt.codec import to_json
from draftrt.manifest import GraphEntry
from draftrt.quantization import describe


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """Return what is known of a bundle as JSON data.

    Keys: ``bundle``, ``drafter``, ``target``, ``graphs`` (no signatures), ``plans``, ``created``
    and ``command``.
    """
    facts = to_json(bundle.manifest)
    for graph in facts["graphs"].values():
        del graph["signature"]
    return {"bundle": str(bundle.path)} | {
        name: facts[name] for name in ("drafter", "target", "graphs", "plans", "created", "command")
    }


def bundle_table(bundle: Bundle) -> Iterator[tuple[str, str, str]]:
    """Yield (what, description, file and size) rows for a terminal."""
    manifest = bundle.manifest
    if manifest.drafter is not None:
        spec = manifest.drafter
        about = f"{spec.family.value}, {spec.num_layers} layers, {spec.num_draft_tokens} drafts"
        yield "drafter", about, "manifest.json"
    target = manifest.target
    yield "target", f"{target.architecture}, {target.num_layers} layers", "manifest.json"
    for name, entry in manifest.graphs.items():
        size = manifest.files[entry.data].bytes if entry.data in manifest.files else 0
        yield f"graph {name}", _graph(entry), f"{entry.file}, {size / 1e6:.1f} MB of weights"
    for plan in manifest.plans.values():
        sms = ", ".join(str(sm) for sm in plan.sms)
        about = f"{plan.backend} {plan.backend_version}, SM {sms}"
        yield f"plan of {plan.graph}", about, f"{plan.file}, {plan.size_bytes / 1e6:.1f} MB"
    yield "made", manifest.created, manifest.command


def _graph(entry: GraphEntry) -> str:
    weights = describe(entry.quantization) or "weights as they were"
    return (
        f"{entry.precision.value}, {weights}, {entry.profile}, opset {entry.opset}, "
        f"{entry.max_context} rows"
    )

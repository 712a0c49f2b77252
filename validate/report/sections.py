"""The sections of a report: headings, sentences, tables and plots, not yet HTML or Markdown.

Every plot has a table with the same figures, so that Markdown says what HTML shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from draftrt.codec import to_json
from draftrt.validate.bench.plots import Plot, Section, Table, bars
from draftrt.validate.bench.section import bench_section, speculative
from draftrt.validate.report.report import BundleReport


def sections_of(report: BundleReport) -> list[Section]:
    """Return everything a report says, in reading order."""
    parts = [_parity(report)]
    if report.bench is not None:
        parts.append(bench_section(report.bench, report.sources["bench"]))
    if report.doctor is not None:
        parts.append(doctor_section(report.doctor, report.sources["doctor"]))
    return [*parts, _bundle(report), _facts(report), _provenance(report)]


def headline(report: BundleReport) -> list[tuple[str, str]]:
    """Return the few figures that a reader looks for first, each with its name."""
    spec, entry = report.bundle.drafter(), report.bundle.graph("draft")
    told = [
        ("parity with PyTorch", report.verdict),
        ("drafter", f"{spec.family.value}, {spec.num_draft_tokens} drafts a round"),
        ("graph", f"{entry.precision.value}, opset {entry.opset}"),
        ("bundle size", readable(sum(one.bytes for one in report.bundle.manifest.files.values()))),
    ]
    own = None if report.bench is None else speculative(report.bench)
    if own is not None and own.get("stats"):
        told.append(
            ("acceptance length", f"{own['stats']['acceptance_length']:.2f} tokens a round")
        )
        told.append(("speed", f"{own['times_plain']:.2f} × plain decoding"))
    return told


def readable(size: int) -> str:
    """Return bytes as kB, MB or GB."""
    if size < 1e5:
        return f"{size / 1e3:.2f} kB"
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB"


def _parity(report: BundleReport) -> Section:
    found = report.parity
    if found is None:
        return Section(title="Parity", text=["The graph was not compared with its PyTorch module."])
    graphs = " and ".join(dict.fromkeys(one["graph"] for one in found["rounds"]))
    longest = max(one["context_length"] + one["new_rows"] for one in found["rounds"])
    text = [
        f"{found['backend']} against PyTorch in {found['precision']}: {len(found['rounds'])} "
        f"rounds of {graphs}, none, some and all drafts accepted, context up to {longest} tokens. "
        f"Source: {report.sources['parity']}.",
        *found["notes"],
    ]
    target = found.get("target")
    if target is not None:
        verdict = "the same as its own" if target["same"] else "different from its own"
        text.append(f"The target graph is {verdict}. {'; '.join(target['compared'])}.")
        text += [*target["notes"], *target["differences"]]
    measures = Table(
        head=["output", "measure", "rows", "seen", "limit", "verdict"],
        rows=[_measure(one) for one in found["measures"]],
        title="What a decoder notices",
    )
    return Section(title="Parity", text=text, tables=[_outputs(found), measures])


def _outputs(found: Mapping[str, Any]) -> Table:
    worst: dict[str, dict[str, Any]] = {}
    for one in found["rounds"]:
        for finding in one["outputs"]:
            name = re.sub(r"^present_(key|value)_\d+", "cache", finding["output"])
            sums = worst.setdefault(name, {"compared": 0, "differ": 0, "worst": 0.0, "same": True})
            sums["compared"] += finding["compared"]
            sums["same"] &= finding["same"]
            sums["differ"] += finding["compared"] - finding["equal"]
            sums["worst"] = max(sums["worst"], float(finding["worst"]))
            sums["allowed"] = max(sums.get("allowed", 0.0), float(finding["allowed"]))
    for share in found["shares"]:
        worst[share["output"]]["same"] &= share["same"]
    rows = []
    for name, sums in worst.items():
        limit = found["limits"][re.sub("^cache", "present_key_0", name)]
        is_ids = limit["atol"] == 0 and limit["rtol"] == 0
        seen = (
            f"{sums['differ']} of {sums['compared']} differ" if is_ids else f"{sums['worst']:.1e}"
        )
        allowed = f"{limit['agreement']:.0%} equal" if is_ids else f"{sums['allowed']:.1e}"
        verdict = "same" if sums["same"] else "different"
        rows.append([name, f"{sums['compared']:,}", seen, allowed, verdict, limit["reason"]])
    return Table(
        head=["output", "compared", "worst", "limit", "verdict", "why this limit"],
        rows=rows,
        title="Element by element",
    )


def _measure(one: Mapping[str, Any]) -> list[str]:
    sign, unit = ("≥" if one["at_least"] else "≤"), f" {one['unit']}" if one["unit"] else ""

    def told(value: Any) -> str:
        if "cosine" in one["measure"]:
            gap = 1 - float(value)
            return "1" if gap <= 0 else f"1 − {gap:.1e}"
        return f"{float(value):.2%}" if one["at_least"] else f"{float(value):.1e}{unit}"

    verdict = "same" if one["same"] else "different"
    limit = f"{sign} {told(one['limit'])}"
    return [one["output"], one["measure"], f"{one['rows']:,}", told(one["seen"]), limit, verdict]


def _bundle(report: BundleReport) -> Section:
    manifest = report.bundle.manifest
    graphs = [
        [name, one.file, one.precision.value, one.profile, str(one.opset), f"{one.max_context:,}"]
        for name, one in manifest.graphs.items()
    ]
    tables = [
        Table(
            head=["graph", "file", "precision", "profile", "opset", "context, tokens"],
            rows=graphs,
            title="Graphs",
        )
    ]
    if manifest.plans:
        rows = [
            [
                one.graph,
                one.file,
                f"{one.backend} {one.backend_version}",
                ", ".join(map(str, one.sms)) or "this machine's",
                readable(one.size_bytes),
                f"{one.build_seconds:.1f}",
                readable(one.peak_rss_bytes),
            ]
            for one in manifest.plans.values()
        ]
        head = ["graph", "plan", "built by", "SM", "size", "build, s", "peak memory"]
        tables.append(Table(head=head, rows=rows, title="Plans"))
    files = [
        [name, readable(one.bytes), one.sha256] for name, one in sorted(manifest.files.items())
    ]
    title = "Files and their SHA-256, verified for this report"
    tables.append(Table(head=["file", "size", "SHA-256"], rows=files, title=title, is_long=True))
    return Section(title="Bundle", tables=tables)


def _facts(report: BundleReport) -> Section:
    spec = report.bundle.drafter()
    rows = [
        [name, _short(to_json(getattr(spec, name))), source or "-"]
        for name, source in spec.sources.items()
    ]
    return Section(
        title="Facts of the drafter",
        text=[str(warning) for warning in spec.warnings],
        tables=[
            Table(
                head=["fact", "value", "read from"],
                rows=rows,
                title="Every fact with its source",
                is_long=True,
            )
        ],
    )


def _provenance(report: BundleReport) -> Section:
    manifest = report.bundle.manifest
    names = sorted({*manifest.tools, *report.tools})
    versions = [
        [name, manifest.tools.get(name, "-"), report.tools.get(name, "-")] for name in names
    ]
    inputs = [[name, digest] for name, digest in sorted(manifest.inputs.items())]
    made = [
        ["bundle", manifest.command or "-", manifest.created or "-"],
        ["report", report.command, report.created],
    ]
    return Section(
        title="Provenance",
        tables=[
            Table(head=["what", "command", "UTC"], rows=made, title="Commands"),
            Table(
                head=["package", "of the export", "of the report"],
                rows=versions,
                title="Versions",
            ),
            Table(
                head=["input", "SHA-256"],
                rows=inputs,
                title="What the bundle was made from",
                is_long=True,
            ),
        ],
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."


def doctor_section(found: Mapping[str, Any], source: str) -> Section:
    """Return what ``draftrt doctor acceptance --json`` printed as a section.

    Args:
        found: its data.
        source: where it comes from, in words.
    """
    length = found["acceptance_length"]
    text = [
        f"{length['mean']:.2f} tokens a round{_interval(length)}, over {length['rounds']} rounds. "
        f"Source: {source}.",
        *found["verdicts"],
    ]
    suspects = Table(
        head=["fact", "change tried", "gain, tokens a round", "would help"],
        rows=[
            [one["fact"], one["change"], _gain(one["gain"]), "yes" if one["better"] else "no"]
            for one in found["suspects"]
        ],
        title="Changes tried on the same rounds",
        is_long=True,
    )
    forms = Table(
        head=["form of the prompts", "tokens a round", "gain", "would help"],
        rows=[
            [
                one["form"],
                _gain(one["acceptance_length"]),
                _gain(one["gain"]),
                "yes" if one["better"] else "no",
            ]
            for one in found["forms"]
        ],
        title="Other forms of the prompts",
    )
    return Section(
        title="Acceptance doctor",
        text=text,
        tables=[suspects, forms],
        plots=[_by_position(found["by_position"]), _by_context(found["by_context"])],
    )


def _by_position(shares: Sequence[float]) -> Plot:
    names = [str(index + 1) for index in range(len(shares))]
    title = "Drafts kept, by position"
    return Plot(
        title=title,
        svg=bars(title, [float(share) for share in shares], names, axis="position", most=1.0),
        table=Table(
            head=["position", "share of drafts kept"],
            rows=[[name, f"{share:.3f}"] for name, share in zip(names, shares, strict=True)],
        ),
    )


def _by_context(buckets: Sequence[Mapping[str, Any]]) -> Plot:
    names = [f"{one['first']}–{one['last']}" for one in buckets]
    means = [float(one["mean"]) for one in buckets]
    title = "Tokens a round, by tokens of context"
    most = 1.15 * max(means, default=1.0)
    return Plot(
        title=title,
        svg=bars(title, means, names, axis="tokens of context", most=most),
        table=Table(
            head=["tokens of context", "tokens a round", "rounds"],
            rows=[
                [name, _gain(one), str(one["rounds"])]
                for name, one in zip(names, buckets, strict=True)
            ],
        ),
    )


def _gain(one: Mapping[str, Any] | None) -> str:
    return "-" if one is None else f"{one['mean']:.2f}{_interval(one)}"


def _interval(one: Mapping[str, Any]) -> str:
    if one["low"] is None:
        return ""
    return f" ({one['low']:.2f} to {one['high']:.2f})"

"""`draftrt export`."""

from __future__ import annotations

from pathlib import Path

import click

from draftrt.cli_options import OutputFolder, check_replaced
from draftrt.export.config.ignored import of_draft
from draftrt.export.models.outputs import EXTRA_OUTPUTS
from draftrt.export.options import DEFAULT_CONTEXT, MOST_CONTEXT, ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.export.progress import ProgressBar
from draftrt.export.weights.places import WeightMode
from draftrt.family_cli import alignment_option, family_option, stated_family
from draftrt.ignore_cli import ignore_key_option
from draftrt.profile import Profile
from draftrt.quantization import Part, Scheme
from draftrt.quantize_cli import quantize_option
from draftrt.spec import Precision


@click.command("export")
@click.argument("draft", required=False, type=click.Path(path_type=Path))
@click.option(
    "--target", required=True, type=click.Path(path_type=Path), help="Target checkpoint folder."
)
@click.option("-o", "--out", required=True, type=OutputFolder(), help="Bundle folder to write.")
@click.option(
    "--precision",
    type=click.Choice([p.value for p in Precision]),
    default="fp32",
    show_default=True,
    help="Element type of weights and caches; sensitive parts stay in float32.",
)
@click.option(
    "--graph",
    "profile",
    type=click.Choice([p.value for p in Profile]),
    default="fixed",
    show_default=True,
    help="fixed: opset 24, caches written in place; compat: opset 20 operators.",
)
@click.option(
    "--max-context",
    type=click.IntRange(4, MOST_CONTEXT),
    help=f"Rows of each cache.  [default: the models' positions, at most {DEFAULT_CONTEXT}]",
)
@click.option(
    "--outputs",
    multiple=True,
    type=click.Choice(EXTRA_OUTPUTS),
    help="Further outputs of the graph.",
)
@click.option(
    "--sampled",
    is_flag=True,
    help="Let drafts be drawn at a temperature too (run --proposal sampled).",
)
@alignment_option
@family_option
@ignore_key_option
@quantize_option
@click.option(
    "--target-graph/--no-target-graph",
    default=None,
    help="Export the target's graph too; by default where its architecture is supported.",
)
@click.option(
    "--weights",
    type=click.Choice([mode.value for mode in WeightMode]),
    default="copy",
    show_default=True,
    help="copy: the bundle stands alone; link: it points into the checkpoint's own files where "
    "type and layout allow, on the same file system.",
)
@click.option(
    "--hash",
    "hashed",
    type=click.Choice(["sampled", "full"]),
    default="sampled",
    show_default=True,
    help="How the manifest identifies the checkpoint's weight files: by samples, or by every byte.",
)
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
def export(
    draft: Path | None,
    target: Path,
    out: Path,
    precision: str,
    profile: str,
    max_context: int | None,
    outputs: tuple[str, ...],
    sampled: bool,
    quantization: dict[str, dict[Part, Scheme]],
    sample_from_anchor: bool | None,
    family: str | None,
    ignore_keys: tuple[str, ...],
    target_graph: bool | None,
    weights: str,
    hashed: str,
    force: bool,
) -> None:
    """Trace the drafter in folder DRAFT and its target into a bundle; or the target alone."""
    if draft is None:
        of_drafters = {
            "--outputs": outputs,
            "--sampled": sampled,
            "--sample-from-anchor": sample_from_anchor is not None,
            "--family": family,
            "--ignore-key": of_draft(ignore_keys),
            "--no-target-graph": target_graph is False,
        }
        if given := [name for name, value in of_drafters.items() if value]:
            raise click.UsageError(
                f"got {', '.join(given)} without DRAFT: the target alone is exported; expected "
                "none of them, or a drafter's folder"
            )
    check_replaced(out, inputs=(draft, target))
    options = ExportOptions(
        precision=Precision(precision),
        profile=Profile(profile),
        max_context=max_context,
        extra_outputs=outputs,
        sampled=sampled,
        sample_from_anchor=sample_from_anchor,
        family=stated_family(family),
        ignore_keys=frozenset(ignore_keys),
        quantization=quantization,
        target_graph=target_graph,
        force=force,
        weights=WeightMode(weights),
        hash_all=hashed == "full",
    )
    bar = ProgressBar()
    export_bundle(draft, target, out, options, bar.report, bar.show)
    click.echo(str(out))

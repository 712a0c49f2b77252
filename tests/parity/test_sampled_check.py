"""The check of large models, forced upon small ones of every family, profile and precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftrt.export.check import extent
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.spec import Precision, Profile
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target

pytestmark = [pytest.mark.parity, pytest.mark.extended]
TOYS = {
    "dflash": ToyDrafter(kind=Kind.ZLAB_DFLASH, num_layers=4, sliding_window=6),
    "dflash2": ToyDrafter(kind=Kind.ZLAB_DFLASH2, num_layers=3),
    "dspark": ToyDrafter(kind=Kind.SPECULATORS_DSPARK, draft_vocab_size=96, num_layers=3),
}


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize("name", TOYS)
def test_every_graph_passes_the_check_by_samples(
    name: str,
    profile: Profile,
    precision: Precision,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extent, "FULL_CHECK_BYTES", 0)
    monkeypatch.setattr(extent, "BLOCK_ROWS", 75)
    monkeypatch.setattr(extent, "BLOCK_ELEMENTS", 700)
    lines: list[str] = []
    draft = write_drafter(tmp_path / "draft", TOYS[name])
    target = write_target(tmp_path / "target")
    options = ExportOptions(precision=precision, profile=profile, max_context=64)
    export_bundle(draft, target, tmp_path / "bundle", options, lines.append)
    checked = [line for line in lines if "vocabulary rows" in line]
    layers = TOYS[name].num_layers
    kinds = [range(layers)]
    if TOYS[name].sliding_window is not None:
        kinds = [range(0, layers, 2), range(1, layers, 2)]
    chosen = [kind[at] for kind in kinds for at in (0, -1)]
    starts = [f"check: layer {at} of {layers}" for at in chosen]
    starts += [f"check: layer {at} of 6" for at in (0, 5)]
    assert [line.split(",")[0] for line in checked] == starts
    same = [line for line in lines if "over weights of their own" in line]
    assert len(same) == len(kinds) + 1

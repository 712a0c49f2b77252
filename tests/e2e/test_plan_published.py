"""`draftrt plan` of published pairs, whose weights are holes, and of untied heads in integers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.export.checkpoint.decoder import read_decoder
from draftrt.export.checkpoint.target import read_target
from draftrt.export.models.shapes import decoder_shapes
from tests.toys.models import Kind, ToyDrafter, ToyTarget
from tests.toys.toys import write_drafter, write_target
from tests.unit.export.checkpoint.published_hybrids import HYBRIDS, LEFT_OUT
from tests.unit.export.checkpoint.published_targets import BY_NAME
from tests.unit.export.published import ROWS
from tests.unit.export.published_files import Shapes, write_headers, write_published

pytestmark = pytest.mark.e2e
CONFIGS = {"Muse-Glimmer-30B": BY_NAME["Muse-Glimmer-30B"].config, **HYBRIDS}
# the smaller hybrids' drafters have no published text here: planned alone
PAIRS = {
    "Muse-Glimmer-30B": "meta-models/Muse-Glimmer-30B-assistant",
    "Qwen3.5-4B": "z-lab/Qwen3.5-4B-DFlash",
    "Qwen3.6-27B": "z-lab/Qwen3.6-27B-DFlash",
}
# target, how it is quantised: the smallest board and card that hold the pair, and what do not
FITS = {
    ("Muse-Glimmer-30B", "int4"): ({"agx-orin-32gb", "rtx-5090"}, {"orin-nx-16gb", "rtx-4080"}),
    ("Muse-Glimmer-30B", None): ({"thor", "rtx-pro-6000"}, {"agx-orin-64gb", "rtx-5090"}),
    ("Qwen3.5-0.8B", "int4"): ({"orin-nano-8gb"}, set()),
    ("Qwen3.5-0.8B", None): ({"orin-nano-8gb"}, set()),
    ("Qwen3.5-4B", "int4"): ({"orin-nx-16gb", "rtx-4060"}, {"orin-nano-8gb", "orin-nx-8gb"}),
    ("Qwen3.5-4B", None): ({"orin-nx-16gb", "rtx-3060"}, {"orin-nx-8gb", "rtx-4060"}),
    ("Qwen3.5-9B", "int4"): ({"orin-nx-16gb", "rtx-4060"}, {"orin-nx-8gb"}),
    ("Qwen3.5-9B", None): ({"agx-orin-32gb", "rtx-3090"}, {"orin-nx-16gb", "rtx-5080"}),
    ("Qwen3.5-27B", "int4"): ({"agx-orin-32gb", "rtx-3090"}, {"orin-nx-16gb", "rtx-5080"}),
    ("Qwen3.6-27B", "int4"): ({"agx-orin-32gb", "rtx-3090"}, {"orin-nx-16gb", "rtx-5080"}),
    ("Qwen3.6-27B", None): ({"agx-orin-64gb", "rtx-pro-6000"}, {"agx-orin-32gb", "rtx-5090"}),
}


def write_its_headers(folder: Path, config: dict[str, Any]) -> tuple[Path, Shapes]:
    """Write a target whose weights are holes, and return its tensors by the graph's names."""
    text = config.get("text_config", config)
    prefix = "model.language_model." if "text_config" in config else "model."
    size = (text["vocab_size"], text["hidden_size"])
    tables: Shapes = {f"{prefix}embed_tokens.weight": size}
    if not text["tie_word_embeddings"]:
        tables["lm_head.weight"] = size
    spec = read_decoder(read_target(write_headers(folder / "tables", config, tables)))
    shapes = decoder_shapes(spec)
    own = {prefix + k[6:] if k.startswith("model.") else k: v for k, v in shapes.items()}
    if spec.delta is not None:
        own |= LEFT_OUT
    return write_headers(folder / "target", config, own), shapes


def weights(shapes: Shapes, *, is_int4: bool) -> int:
    """Bytes in float16; in int4 half a byte and a scale for each 32 elements of a matrix.

    A tied head in int4 stands beside the table, which is looked up in float16.
    """
    total = 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        is_table = "embed_tokens" in name
        is_tied = is_table and not any("lm_head" in other for other in shapes)
        in_int4 = count // 2 + 2 * count // 32 if is_int4 and len(shape) == 2 else 2 * count
        total += 2 * count if is_table else in_int4
        total += in_int4 if is_int4 and is_tied else 0
    return total


QUICK = {("Muse-Glimmer-30B", "int4"), ("Qwen3.5-4B", "int4"), ("Qwen3.6-27B", None)}


@pytest.mark.parametrize(
    ("name", "scheme"),
    [pytest.param(*p, marks=() if p in QUICK else pytest.mark.extended) for p in FITS],
)
def test_a_published_pair_fits_where_its_bytes_do(
    name: str, scheme: str | None, tmp_path: Path
) -> None:
    target, shapes = write_its_headers(tmp_path, CONFIGS[name])
    words = ["plan", "--target", str(target), "--precision", "fp16", "--json"]
    if name in PAIRS:
        words.append(str(write_published(tmp_path / "draft", ROWS[PAIRS[name]])))
    words += [] if scheme is None else ["--quantize", scheme]
    result = CliRunner().invoke(group, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["graphs"]["target"]["weights"] == pytest.approx(
        weights(shapes, is_int4=scheme is not None), rel=0.01
    )
    fits = {one["name"] for one in found["devices"] if one["fits"]}
    enough, too_small = FITS[name, scheme]
    assert enough <= fits
    assert not too_small & fits


@pytest.mark.parametrize("scheme", ["int8", "head=int8", "embedding=int8"])
def test_a_table_with_a_head_beside_it_is_counted_once(scheme: str, tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", ToyTarget(tie_word_embeddings=False))
    draft = write_drafter(tmp_path / "draft", ToyDrafter(kind=Kind.DEEPSPEC_DSPARK))
    out = tmp_path / "bundle"
    words = [str(draft), "--target", str(target), "--max-context", "64", "--quantize", scheme]
    words += ["--precision", "fp16"]
    made = CliRunner().invoke(group, ["export", *words, "-o", str(out)])
    assert made.exit_code == 0, made.output
    found = json.loads(CliRunner().invoke(group, ["plan", *words, "--json"]).stdout)
    for name, entry in Bundle.open(out).manifest.graphs.items():
        assert entry.weight_bytes == found["graphs"][name]["weights"], name

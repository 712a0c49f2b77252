"""What --quantize asks for, what is refused, and which weights it reaches."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from draftrt.cli import group
from draftrt.errors import SpecError, UnsupportedError
from draftrt.quantization import Part, Scheme, describe, parse_quantization, part_of

INT4, INT8, FP8 = Scheme.INT4, Scheme.INT8, Scheme.FP8
LINEAR, HEAD, EMBEDDING = Part.LINEAR, Part.HEAD, Part.EMBEDDING
ASSETS = Path(__file__).resolve().parents[1] / "assets"


@pytest.mark.parametrize(
    ("values", "draft", "target"),
    [
        ([], {}, {}),
        (["int4"], {LINEAR: INT4, HEAD: INT4}, {LINEAR: INT4, HEAD: INT4}),
        (["draft:int4"], {LINEAR: INT4, HEAD: INT4}, {}),
        (
            ["head=int8", "int4", "target:embedding=int8"],
            {LINEAR: INT4, HEAD: INT8},
            {LINEAR: INT4, HEAD: INT8, EMBEDDING: INT8},
        ),
        (["int8", "target:linear=fp8"], {LINEAR: INT8, HEAD: INT8}, {LINEAR: FP8, HEAD: INT8}),
        (["embedding=int8", "int4", "int4"], {LINEAR: INT4, HEAD: INT4, EMBEDDING: INT8}, None),
    ],
)
def test_what_is_named_goes_before_what_is_general(
    values: list[str], draft: dict[Part, Scheme], target: dict[Part, Scheme] | None
) -> None:
    expected = {"draft": draft, "target": draft if target is None else target}
    assert parse_quantization(values) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["int5"], r"got scheme 'int5', expected one of \['int8', 'int4', 'fp8'\]"),
        (["fc=int4"], r"got part 'fc', expected one of \['linear', 'head', 'embedding'\]"),
        (["drafter:int4"], "got 'drafter' before the colon, expected draft or target"),
        ([":int4"], "got '' before the colon"),
        (["head=int4", "head=int8"], "got int4 and int8 for head"),
        (["int4", "int8"], "got int4 and int8 for linear"),
        ([""], "got scheme ''"),
    ],
)
def test_what_is_misspelt_is_wrong_usage(values: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        parse_quantization(values)
    words = ["export", str(ASSETS / "tiny-dflash"), "--target", str(ASSETS / "tiny-target")]
    options = [word for value in values for word in ("--quantize", value)]
    done = CliRunner().invoke(group, [*words, "-o", str(tmp_path / "out"), *options])
    assert done.exit_code == 2
    assert "Invalid value for '--quantize'" in done.output


@pytest.mark.parametrize("value", ["nvfp4", "head=nvfp4", "draft:fp4"])
def test_nvfp4_is_refused_by_name(value: str) -> None:
    with pytest.raises(UnsupportedError, match=r"got (nvf|f)p4") as caught:
        parse_quantization([value])
    assert "int4 takes as many bytes" in caught.value.hint


@pytest.mark.parametrize("scheme", ["int4", "fp8"])
def test_an_embedding_comes_in_int8_alone(scheme: str) -> None:
    with pytest.raises(UnsupportedError, match=f"comes in int8 alone, got {scheme}") as caught:
        parse_quantization([f"embedding={scheme}"])
    assert "embedding=int8" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--quantize", "nvfp4"], 2, "nvfp4: got nvfp4, expected one of ['int8', 'int4', 'fp8']"),
        (["--quantize", "embedding=fp8"], 2, "use embedding=int8, or leave the table as it is"),
        (["--graph", "compat", "--quantize", "int4"], 1, "got opset 20, expected 21 or later"),
    ],
)
def test_a_refused_scheme_ends_the_export_before_any_work(
    words: list[str], code: int, message: str, tmp_path: Path
) -> None:
    start = ["export", str(ASSETS / "tiny-dflash"), "--target", str(ASSETS / "tiny-target")]
    done = CliRunner().invoke(group, [*start, "-o", str(tmp_path / "out"), *words])
    assert done.exit_code == code
    assert message in done.output
    assert "trace" not in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "as_product", "as_table"),
    [
        ("layers.3.self_attn.k_proj.weight", LINEAR, None),
        ("model.layers.0.mlp.down_proj.weight", LINEAR, None),
        ("lm_head.weight", HEAD, None),
        ("embed_tokens.weight", HEAD, EMBEDDING),
        ("model.embed_tokens.weight", HEAD, EMBEDDING),
        ("fc.weight", None, None),
        ("markov_head.markov_w1.weight", None, None),
        ("markov_head.markov_w2.weight", None, None),
        ("markov_head.gate_proj.weight", None, None),
        ("confidence_head.proj.weight", None, None),
        ("candidate_selector.hidden_projection.weight", None, None),
        ("layers.0.attention_conv.kernel_projection.weight", None, None),
        ("layers.0.input_layernorm.weight", None, None),
    ],
)
def test_a_weights_use_says_what_part_it_is(
    name: str, as_product: Part | None, as_table: Part | None
) -> None:
    assert part_of(name, is_product=True) is as_product
    assert part_of(name, is_product=False) is as_table


def test_parts_are_told_in_one_order() -> None:
    assert describe({EMBEDDING: INT8, LINEAR: INT4}) == "linear int4, embedding int8"
    assert describe({}) == ""

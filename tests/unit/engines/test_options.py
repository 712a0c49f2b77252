"""Shape ranges from the signature table, and build options."""

from __future__ import annotations

import pytest

from draftrt.engines.capabilities import Backend
from draftrt.engines.options import BuildOptions, ShapeRange, narrow, shape_ranges
from draftrt.errors import BuildError, ChoiceError, SpecError
from draftrt.signature import DimRange, Signature, TensorSpec

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="features", dtype="float32", shape=(1, "T", 6)),
        TensorSpec(name="both", dtype="float32", shape=("S", "T")),
        TensorSpec(name="anchor", dtype="int64", shape=(1,)),
    ),
    outputs=(),
    dimensions={"T": DimRange(min=1, opt=8, max=60), "S": DimRange(min=2, opt=2, max=4)},
)


def test_every_input_has_a_range_and_symbols_keep_theirs_apart() -> None:
    assert shape_ranges(SIGNATURE, SIGNATURE.dimensions) == {
        "features": ShapeRange(min=(1, 1, 6), opt=(1, 8, 6), max=(1, 60, 6)),
        "both": ShapeRange(min=(2, 1), opt=(2, 8), max=(4, 60)),
        "anchor": ShapeRange(min=(1,), opt=(1,), max=(1,)),
    }


def test_an_override_replaces_one_range_and_leaves_the_others() -> None:
    narrowed = narrow(SIGNATURE, {"T": DimRange(min=2, opt=3, max=4)})
    assert narrowed == {"T": DimRange(min=2, opt=3, max=4), "S": SIGNATURE.dimensions["S"]}


def test_all_wrong_overrides_are_reported_at_once() -> None:
    with pytest.raises(ChoiceError) as caught:
        narrow(
            SIGNATURE,
            {
                "U": DimRange(min=1, opt=1, max=1),
                "T": DimRange(min=1, opt=8, max=61),
                "S": DimRange(min=1, opt=2, max=4),
            },
        )
    text = str(caught.value)
    assert "no dimension 'U' in the graph's signature, it has ['S', 'T']" in text
    assert "dimension T: got 1..61, expected a range within 1..60" in text
    assert "dimension S: got 1..4, expected a range within 2..4" in text


@pytest.mark.parametrize("sizes", [(0, 1, 2), (3, 2, 4), (1, 5, 4)])
def test_a_range_is_ordered_and_starts_at_one(sizes: tuple[int, int, int]) -> None:
    low, best, high = sizes
    with pytest.raises(SpecError, match="1 <= min <= opt <= max"):
        DimRange(min=low, opt=best, max=high)


def test_options_sort_the_sms_so_that_their_order_changes_no_name() -> None:
    options = BuildOptions(backend=Backend.TENSORRT_RTX, sms=(120, 86, 89, 86))
    assert options.sms == (86, 89, 120)
    assert options.stem() == "draft.tensorrt-rtx.sm86-89-120"


def test_the_recorded_options_are_those_that_shape_the_plan() -> None:
    options = BuildOptions(
        backend=Backend.TENSORRT_RTX,
        sms=(86,),
        dimensions={"T": DimRange(min=1, opt=4, max=16)},
        workspace_bytes=1024,
        timeout_s=5,
    )
    assert options.as_text() == {
        "workspace_bytes": "1024",
        "tf32": "off",
        "dimension.T": "1:4:16",
    }


@pytest.mark.parametrize("limit", [{"workspace_bytes": 0}, {"timeout_s": -1.0}])
def test_limits_are_positive(limit: dict[str, float]) -> None:
    with pytest.raises(BuildError, match="must be positive, got"):
        BuildOptions(backend=Backend.TENSORRT_RTX, sms=(86,), **limit)  # type: ignore[arg-type]

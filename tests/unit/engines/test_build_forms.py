"""Plans for each SM apart, and plans without weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.engines.capabilities import Backend
from draftrt.engines.options import BuildOptions

MakeBundle = Callable[..., Path]


@pytest.mark.trt
@pytest.mark.slow
def test_each_sm_gets_a_plan_of_its_own(make_bundle: MakeBundle) -> None:
    folder = make_bundle()
    line = ["build", str(folder), "--sm", "89,86", "--per-sm", "--json"]
    done = CliRunner().invoke(group, line, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    records = json.loads(done.stdout)
    assert [record["sms"] for record in records] == [[86], [89]]
    plans = Bundle.open(folder).manifest.plans
    assert sorted(plans) == [f"plans/draft.tensorrt-rtx.sm{sm}.plan" for sm in (86, 89)]
    for record in records:
        assert (folder / record["file"]).stat().st_size == record["size_bytes"] > 0
        assert (folder / record["log"]).is_file()
        assert record["build_seconds"] > 0
        assert record["peak_rss_bytes"] > 0


@pytest.mark.trt
@pytest.mark.needs("no GPU")
def test_a_plan_without_weights_is_refused_where_no_gpu_is(make_bundle: MakeBundle) -> None:
    folder = make_bundle()
    done = CliRunner().invoke(group, ["build", str(folder), "--sm", "89", "--strip"])
    assert done.exit_code == 1
    assert "a plan without weights is built with a GPU at hand, and there is none: no NVIDIA" in (
        done.stderr
    )
    assert "leave --strip out here" in done.stderr
    assert not (folder / "plans").exists()


def test_a_plan_without_weights_is_another_plan() -> None:
    whole, stripped = (
        BuildOptions(backend=Backend.TENSORRT_RTX, sms=(89,), strip=strip)
        for strip in (False, True)
    )
    assert stripped.stem() == f"{whole.stem()}.stripped"
    assert "weights" not in whole.as_text()
    assert stripped.as_text()["weights"] == "stripped"


@pytest.mark.needs("tensorrt_rtx")
def test_tensorrt_has_what_building_and_refitting_such_a_plan_calls() -> None:
    import tensorrt_rtx

    for name in ("STRIP_PLAN", "REFIT_IDENTICAL"):
        assert hasattr(tensorrt_rtx.BuilderFlag, name)
    assert hasattr(tensorrt_rtx.OnnxParserRefitter, "refit_from_file")
    assert hasattr(tensorrt_rtx.Refitter, "refit_cuda_engine")

"""Real TensorRT-RTX builds of a small graph. No plan is loaded: that takes a GPU."""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from draftrt.bundle import Bundle
from draftrt.engines.build import build_plan
from draftrt.engines.capabilities import Backend
from draftrt.engines.options import BuildOptions
from draftrt.errors import BuildError, BundleError, ChoiceError, UnsupportedError
from draftrt.files import sha256_of
from draftrt.signature import DimRange
from draftrt.spec import Precision

pytestmark = pytest.mark.trt

MakeBundle = Callable[..., Path]
NAME = "plans/draft.tensorrt-rtx.sm86-89-120"


def rtx(*sms: int, dimensions: dict[str, DimRange] | None = None) -> BuildOptions:
    return BuildOptions(
        backend=Backend.TENSORRT_RTX, sms=sms or (86, 89, 120), dimensions=dimensions or {}
    )


@pytest.mark.parametrize(
    ("precision", "num_decomposed"),
    [(Precision.FP32, 1), (Precision.FP16, 0), (Precision.BF16, 0)],
)
def test_one_plan_serves_several_sms_and_is_recorded(
    make_bundle: MakeBundle, precision: Precision, num_decomposed: int
) -> None:
    folder = make_bundle(precision)
    start = time.monotonic()
    result = build_plan(folder, rtx(120, 86, 89, 86))
    seconds = time.monotonic() - start

    entry = Bundle.open(folder).manifest.plans[f"{NAME}.plan"]
    assert result.entry == entry
    assert not result.is_cached
    assert result.reply is not None
    assert (result.reply.num_decomposed, result.reply.num_attentions) == (num_decomposed, 1)
    assert entry.sms == (86, 89, 120)
    assert entry.graph == "draft"
    assert entry.graph_sha256 == sha256_of(folder / "draft.onnx")
    assert entry.backend == "tensorrt-rtx"
    assert entry.backend_version == importlib.metadata.version("tensorrt_rtx")
    assert entry.options == {
        "weights_sha256": sha256_of(folder / "draft.onnx.data"),
        "workspace_bytes": "default",
        "tf32": "off",
    }
    assert 0 < entry.build_seconds <= seconds
    assert 50e6 < entry.peak_rss_bytes < 2e9
    assert entry.size_bytes == (folder / f"{NAME}.plan").stat().st_size > 500_000
    log = (folder / f"{NAME}.log").read_text()
    assert "(8, 6), (8, 9), (12, 0)" in log
    assert "[STRONGLY_TYPED]" in log
    assert "target_hidden [min=(1, 1, 128), opt=(1, 8, 128), max=(1, 60, 128)]" in log
    assert sorted(path.name for path in (folder / "plans").iterdir()) == [
        Path(f"{NAME}.log").name,
        Path(f"{NAME}.plan").name,
    ]


def test_a_second_build_is_found_in_the_manifest_unless_something_differs(
    make_bundle: MakeBundle,
) -> None:
    folder = make_bundle()
    first = build_plan(folder, rtx())
    plan = folder / first.entry.file
    written = plan.stat().st_mtime_ns

    again = build_plan(folder, rtx(), check=lambda _: pytest.fail("it builds"))
    assert again.is_cached
    assert again.entry == first.entry
    assert plan.stat().st_mtime_ns == written

    narrowed = build_plan(folder, rtx(dimensions={"T": DimRange(min=1, opt=4, max=16)}))
    assert not narrowed.is_cached
    assert narrowed.entry.file == first.entry.file
    assert narrowed.entry.options["dimension.T"] == "1:4:16"
    assert "max=(1, 16, 128)" in (folder / narrowed.entry.log).read_text()


def test_builds_at_the_same_time_are_both_recorded(make_bundle: MakeBundle) -> None:
    folder = make_bundle()
    threads = [threading.Thread(target=build_plan, args=(folder, rtx(sm))) for sm in (86, 120)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(Bundle.open(folder).manifest.plans) == {
        "plans/draft.tensorrt-rtx.sm86.plan",
        "plans/draft.tensorrt-rtx.sm120.plan",
    }


def test_the_workspace_limit_reaches_the_builder(make_bundle: MakeBundle) -> None:
    options = BuildOptions(backend=Backend.TENSORRT_RTX, sms=(86,), workspace_bytes=64 * 2**20)
    result = build_plan(make_bundle(), options)
    assert result.entry.options["workspace_bytes"] == "67108864"
    assert "WORKSPACE: 64.00 MiB" in result.bundle.file(result.entry.log).read_text()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (rtx(86, 90), UnsupportedError, "got SM90, expected one of 75, 80, 86, 89, 120, 121"),
        (rtx(75), UnsupportedError, "a bf16 graph needs bfloat16: got SM75"),
        (rtx(dimensions={"S": DimRange(min=1, opt=1, max=2)}), ChoiceError, "it has ['T']"),
        (rtx(dimensions={"T": DimRange(min=1, opt=1, max=61)}), BuildError, "within 1..60"),
        (
            BuildOptions(backend=Backend.TENSORRT_RTX, sms=(86,), graph="target"),
            BundleError,
            "no graph 'target', it has ['draft']",
        ),
    ],
    ids=["sm", "bf16", "name", "range", "graph"],
)
def test_what_cannot_be_built_is_refused_before_a_process_starts(
    make_bundle: MakeBundle, options: BuildOptions, error: type[Exception], text: str
) -> None:
    folder = make_bundle(Precision.BF16)
    with pytest.raises(error) as caught:
        build_plan(folder, options, on_tick=lambda _: pytest.fail("a process was started"))
    assert text in str(caught.value)
    assert not (folder / "plans").exists()


def test_a_changed_graph_is_not_built(make_bundle: MakeBundle) -> None:
    folder = make_bundle()
    content = bytearray((folder / "draft.onnx").read_bytes())
    content[-1] ^= 1
    (folder / "draft.onnx").write_bytes(content)
    with pytest.raises(BundleError, match=r"draft\.onnx got sha256 \w+…, expected"):
        build_plan(folder, rtx(86))


def test_a_bundle_that_cannot_be_written_is_refused(make_bundle: MakeBundle) -> None:
    folder = make_bundle()
    (folder / "plans").write_text("")
    with pytest.raises(BundleError, match="cannot be written: File exists"):
        build_plan(folder, rtx(86))

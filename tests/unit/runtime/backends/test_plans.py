"""Which plan of a bundle runs on this GPU, and what is said where none does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.errors import BackendError, BundleError
from draftrt.manifest import FileEntry, GraphEntry, Manifest, PlanEntry
from draftrt.runtime.backends import plans as trt_plan
from draftrt.runtime.backends.plans import choose_plan, import_tensorrt, open_plan
from draftrt.runtime.load import open_graph
from draftrt.spec import Precision

PLAN = PlanEntry(
    file="plans/draft.tensorrt-rtx.sm86-89.plan",
    log="plans/draft.tensorrt-rtx.sm86-89.log",
    graph="draft",
    graph_sha256="now",
    backend="tensorrt-rtx",
    backend_version="1.7",
    sms=(86, 89),
    options={},
    build_seconds=1.0,
    peak_rss_bytes=1,
    size_bytes=1,
)
MakeBundle = Callable[..., Bundle]


@pytest.fixture
def make(toy: SimpleNamespace) -> MakeBundle:
    """A bundle in memory with the given plans."""

    def build(*plans: PlanEntry) -> Bundle:
        entry = GraphEntry(
            file="draft.onnx",
            data="draft.onnx.data",
            precision=Precision.FP32,
            profile="fixed",
            opset=24,
            max_context=40,
            signature=toy.signature(4, 5, 40, confidence=False),
        )
        manifest = Manifest(
            drafter=toy.spec(),
            target=toy.target_spec(),
            graphs={"draft": entry, "target": replace(entry, file="target.onnx")},
            files={
                "draft.onnx": FileEntry(bytes=1, sha256="now"),
                "target.onnx": FileEntry(bytes=1, sha256="now"),
            },
            inputs={},
            tools={},
            command="",
            created="",
            plans={plan.file: plan for plan in plans},
        )
        return Bundle(Path("my-bundle"), manifest)

    return build


def choose(bundle: Bundle, sm: int = 89, version: str = "1.7") -> PlanEntry:
    return choose_plan(bundle, "draft", "tensorrt-rtx", version=version, sm=sm)


def test_of_several_plans_the_one_for_the_fewest_sms_that_runs_here_is_taken(
    make: MakeBundle,
) -> None:
    own = replace(PLAN, file="plans/b.plan", sms=(89,))
    others = [
        replace(PLAN, file="plans/a.plan", sms=(120,)),
        replace(PLAN, file="plans/c.plan", sms=(89,), backend_version="1.6"),
        replace(PLAN, file="plans/d.plan", sms=(89,), graph="target"),
        replace(PLAN, file="plans/e.plan", sms=(89,), backend="tensorrt"),
        replace(PLAN, file="plans/f.plan", sms=(89,), graph_sha256="before"),
    ]
    bundle = make(PLAN, *others, own)
    assert choose(bundle) == own
    assert choose(bundle, sm=86) == PLAN


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ([], "there is none"),
        ([replace(PLAN, graph="target")], "there is none"),
        ([replace(PLAN, backend="tensorrt")], "there is none"),
        ([replace(PLAN, graph_sha256="before")], "built from another ONNX file than is there now"),
        ([replace(PLAN, sms=(86, 120))], "built for SM 86, 120, this GPU is SM 89"),
        ([replace(PLAN, backend_version="1.6")], r"built by tensorrt-rtx 1.6, installed is 1.7"),
    ],
)
def test_each_mismatch_is_said_and_the_hint_is_the_command_that_mends_it(
    make: MakeBundle, plans: list[PlanEntry], message: str
) -> None:
    with pytest.raises(BackendError, match=message) as refusal:
        choose(make(*plans))
    assert "my-bundle: tensorrt-rtx plans of graph 'draft'" in refusal.value.message
    assert "draftrt build my-bundle --graph draft --backend tensorrt-rtx" in refusal.value.hint


def test_the_command_of_a_hint_is_one_that_parses(make: MakeBundle) -> None:
    with pytest.raises(BackendError) as refusal:
        choose(make(replace(PLAN, backend_version="1.6")))
    arguments = refusal.value.hint.split()[1:]
    result = CliRunner().invoke(group, [*arguments, "--help"])
    assert result.exit_code == 0
    with pytest.raises(BackendError) as refusal:
        choose_plan(make(), "target", "tensorrt", version="10.3", sm=87)
    assert "--sm" not in refusal.value.hint, "classic TensorRT builds for the GPU that is here"


@pytest.mark.parametrize(("backend", "extra"), [("tensorrt-rtx", "rtx"), ("tensorrt", "trt")])
def test_a_missing_package_names_its_extra(
    backend: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = backend.replace("-", "_")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendError, match=f"needs the package {module}") as refusal:
        import_tensorrt(backend)
    assert f"draftrt[{extra}]" in refusal.value.hint


def test_a_backend_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BackendError, match=r"no backend 'openvino', there is \['onnxruntime', "):
        import_tensorrt("openvino")


def test_a_bundle_without_a_plan_is_told_so_on_any_machine(
    make: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", SimpleNamespace(__version__="1.7"))
    with pytest.raises(BackendError, match="there is none"):
        open_graph(make(), backend="tensorrt-rtx")
    with pytest.raises(BundleError, match="no graph 'verifier'"):
        open_plan(make(), "verifier", "tensorrt-rtx")


def test_the_chosen_plan_is_opened_with_a_cache_of_its_own_for_this_gpu(
    make: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    module = SimpleNamespace(__version__="1.7")
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", module)
    monkeypatch.setattr(trt_plan, "Cuda", lambda extra: SimpleNamespace(sm=89))
    monkeypatch.setattr(trt_plan, "TrtSession", lambda *args, **kwargs: seen.extend((args, kwargs)))
    bundle = make(PLAN)
    open_plan(bundle, "draft", "tensorrt-rtx")
    arguments, options = seen
    plan = Path("my-bundle") / PLAN.file
    assert arguments == (module, plan, bundle.graph().signature, SimpleNamespace(sm=89))
    assert options == {"jit_cache": plan.with_suffix(".jit-sm89"), "weights": None}

"""Plans on the GPU against ONNX Runtime and against the publishers' recorded answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftrt.bundle import Bundle
from draftrt.errors import BackendError, FeedError
from draftrt.export.check.feeds import round_feeds
from draftrt.export.options import ExportOptions
from draftrt.runtime.backends.plans import open_plan
from draftrt.runtime.backends.trt import TrtSession
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.load import open_graph
from draftrt.runtime.targets.graph import GraphTarget
from draftrt.spec import Precision, Profile
from draftrt.validate.parity.parity import check_parity
from draftrt.validate.parity.report import as_text

pytestmark = [pytest.mark.gpu, pytest.mark.trt, pytest.mark.slow]

CASES = (
    "zlab-dflash",
    "zlab-dflash2",
    "zlab-dflash-swa-causal",
    "deepspec-dspark-rnn",
    "deepspec-gemma4-dspark",
    "speculators-dspark-reduced-vocab",
)
PairBundle = Callable[..., Path]
CaseBundle = Callable[..., Any]


def same_rounds(bundle: Bundle, session: TrtSession, *, rounds: int, walk: Any = None) -> float:
    """Draft the same rounds on the plan and on ONNX Runtime; return the share of equal ids."""
    spec, rng = bundle.drafter(), np.random.default_rng(0)
    equal = total = 0
    with open_graph(bundle) as onnxruntime:
        pair = [DraftSession(spec, session), DraftSession(spec, onnxruntime)]
        for index in range(rounds):
            rows = (5, 1, 3, 1 + spec.num_draft_tokens)[index % 4]
            length = pair[0].context_length
            feeds = round_feeds(spec, rng, new_rows=rows, context_length=length, walk=walk)
            noise = {name: feeds[name] for name in list(feeds)[3:]} or None
            anchor, features = int(feeds["anchor"][0]), feeds["target_hidden"]
            got, want = (one.draft(anchor, features, noise) for one in pair)
            equal += int((got["draft_ids"] == want["draft_ids"]).sum())
            total += want["draft_ids"].size
            if "confidence" in want and (got["draft_ids"] == want["draft_ids"]).all():
                assert np.allclose(got["confidence"], want["confidence"], atol=2e-2)
    return equal / total


@pytest.mark.parametrize(("precision", "least"), [(Precision.FP32, 1.0), (Precision.FP16, 0.9)])
@pytest.mark.parametrize("name", ["tiny-dflash", "tiny-dspark"])
def test_rounds_are_those_of_onnx_runtime(
    name: str, precision: Precision, least: float, pair_bundle: PairBundle, gpu: Any
) -> None:
    """float32 ids are equal; in float16 an id may flip where two logits are a rounding apart."""
    options = ExportOptions(max_context=256, precision=precision)
    bundle = Bundle.open(pair_bundle(name, options))
    with open_plan(bundle, "draft", gpu.backend.value) as session:
        assert session.is_in_place
        address = session.cache_address("past_key_0")
        assert same_rounds(bundle, session, rounds=16) >= least
        assert session.cache_address("past_key_0") == address


def test_a_bfloat16_plan_drafts_ids_of_the_vocabulary(pair_bundle: PairBundle, gpu: Any) -> None:
    """There is nothing to compare with on a CPU; agreement with the float32 export is close."""
    options = ExportOptions(max_context=256, precision=Precision.BF16)
    bundle = Bundle.open(pair_bundle("tiny-dspark", options))
    wide = Bundle.open(pair_bundle("tiny-dspark"))
    with open_plan(bundle, "draft", gpu.backend.value) as session:
        assert same_rounds(wide, session, rounds=16) >= 0.6


@pytest.mark.parametrize("name", CASES)
def test_golden_cases_give_the_published_ids(name: str, case_bundle: CaseBundle, gpu: Any) -> None:
    case, bundle = case_bundle(name, ExportOptions(max_context=256))
    with open_plan(bundle, "draft", gpu.backend.value) as session:
        drafter = DraftSession(bundle.drafter(), session)
        for one in case.rounds:
            out = drafter.draft(one.anchor, one.target_hidden)
            assert out["draft_ids"][0].tolist() == one.expected["tokens"].tolist()
            if "confidence" in one.expected:
                assert np.allclose(out["confidence"][0], one.expected["confidence"], atol=1e-3)


def test_a_sampled_plan_draws_what_onnx_runtime_draws(case_bundle: CaseBundle, gpu: Any) -> None:
    options = ExportOptions(max_context=256, sampled=True)
    _, bundle = case_bundle("zlab-dflash2", options)
    with open_plan(bundle, "draft", gpu.backend.value) as session:
        assert same_rounds(bundle, session, rounds=12, walk="drawn") == 1.0


def test_a_plan_of_compatible_operators_gives_the_same_answers(
    case_bundle: CaseBundle, gpu: Any
) -> None:
    """Its caches are two buffers that change roles, so wrong roles would show in round two."""
    options = ExportOptions(max_context=256, profile=Profile.COMPAT)
    _, bundle = case_bundle("deepspec-dspark-vanilla", options)
    with open_plan(bundle, "draft", gpu.backend.value) as session:
        assert same_rounds(bundle, session, rounds=12) == 1.0


def test_the_target_agrees_with_onnx_runtime_over_pieces_and_rollbacks(
    pair_bundle: PairBundle, gpu: Any
) -> None:
    bundle = Bundle.open(pair_bundle("tiny-dflash"))
    rng = np.random.default_rng(1)
    most = bundle.graph("target").max_context
    with (
        open_plan(bundle, "target", gpu.backend.value) as plan,
        open_graph(bundle, "target") as onnxruntime,
    ):
        pair = [GraphTarget(session, most) for session in (plan, onnxruntime)]
        prompt = rng.integers(0, bundle.manifest.target.vocab_size, 200)
        got, want = (target.prefill(prompt) for target in pair)
        assert np.array_equal(got.token_ids, want.token_ids)
        assert np.allclose(got.features, want.features, atol=2e-3)
        for target in pair:
            target.rollback(0)
        for rows, keep in ((37, 30), (8, 33), (1, 34), (8, 42), (8, 50), (8, 58)):
            ids = rng.integers(0, bundle.manifest.target.vocab_size, rows)
            got, want = (target.verify(ids, want_logits=True) for target in pair)
            assert np.array_equal(got.token_ids, want.token_ids)
            assert np.allclose(got.features, want.features, atol=2e-3)
            assert got.logits is not None
            assert want.logits is not None
            assert np.allclose(got.logits, want.logits, atol=2e-3)
            for target in pair:
                target.rollback(keep)


@pytest.mark.needs("tensorrt_rtx")  # classic TensorRT compiles nothing at run time
def test_what_was_compiled_on_the_gpu_is_kept_and_used_again(
    pair_bundle: PairBundle, gpu: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = Bundle.open(pair_bundle("tiny-dflash"))
    for kept in (bundle.path / "plans").glob("draft*.jit-*"):
        kept.unlink()
    with open_plan(bundle, "draft", "tensorrt-rtx") as session:
        same_rounds(bundle, session, rounds=8)
    (kept,) = (bundle.path / "plans").glob("draft*.jit-*")
    content = kept.read_bytes()
    assert content
    with open_plan(bundle, "draft", "tensorrt-rtx") as session:
        assert same_rounds(bundle, session, rounds=8) == 1.0
    assert "compiled for another driver" not in caplog.text
    kept.write_bytes(b"not a cache")
    with open_plan(bundle, "draft", "tensorrt-rtx") as session:
        assert same_rounds(bundle, session, rounds=8) == 1.0
    assert "compiled for another driver or version" in caplog.text
    assert kept.read_bytes() != b"not a cache"


def test_sizes_that_come_back_run_as_cuda_graphs(pair_bundle: PairBundle, gpu: Any) -> None:
    bundle = Bundle.open(pair_bundle("tiny-dflash"))
    with open_plan(bundle, "draft", gpu.backend.value) as session:
        assert same_rounds(bundle, session, rounds=24) == 1.0
        if gpu.backend.value == "tensorrt":
            assert session.num_recordings >= 3


def test_plans_that_do_not_fit_the_gpu_or_the_feeds_are_refused(
    pair_bundle: PairBundle, gpu: Any, tmp_path: Path
) -> None:
    bundle = Bundle.open(pair_bundle("tiny-dflash"))
    backend = gpu.backend.value
    with open_plan(bundle, "draft", backend) as session:
        drafter = DraftSession(bundle.drafter(), session)
        with pytest.raises(FeedError, match="expected at most 256"):
            drafter.draft(1, np.zeros((1, 256, drafter.spec.feature_size), np.float32))
    plans = {
        file: replace(plan, sms=tuple(sm for sm in (86, 89) if sm != gpu.sm))
        for file, plan in bundle.manifest.plans.items()
    }
    elsewhere = Bundle(bundle.path, replace(bundle.manifest, plans=plans))
    with pytest.raises(BackendError, match=f"this GPU is SM {gpu.sm}"):
        open_plan(elsewhere, "draft", backend)
    (tmp_path / "plans").mkdir()
    for file in plans:
        (tmp_path / file).write_bytes(b"damaged" * 1000)
    with pytest.raises(BackendError, match="does not load it"):
        open_plan(Bundle(tmp_path, bundle.manifest), "draft", backend)


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("name", ["tiny-dflash", "tiny-dspark"])
def test_a_plan_does_what_its_module_does(
    name: str, precision: Precision, pair_bundle: PairBundle, gpu: Any
) -> None:
    """The limits of GPUs in draftrt/tolerances.py are argued, not measured: this measures them."""
    options = ExportOptions(max_context=256, precision=precision, extra_outputs=("logits",))
    found = check_parity(pair_bundle(name, options), backend=gpu.backend.value)
    assert found.is_same, "\n".join(as_text(found))
    assert found.backend == gpu.backend.value
    assert {one.output for one in found.measures} >= {"logits"}
    assert not any(name.startswith("present_") for name in found.limits)

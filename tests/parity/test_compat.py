"""Graphs of profile ``compat``: operators of opset 20, the same signature and the same answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from draftrt.bundle import Bundle
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import load, open_graph
from draftrt.runtime.targets.graph import GraphTarget
from draftrt.spec import Profile
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target

pytestmark = [
    pytest.mark.parity,
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.xdist_group("compat"),
]

NEWER = {"Attention", "RMSNormalization", "RotaryEmbedding", "TensorScatter", "Swish"}
Bundles = Mapping[Profile, Path]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """One pair in both profiles: sliding and full layers, a reduced vocabulary, two heads."""
    folder = tmp_path_factory.mktemp("compat")
    toy = ToyDrafter(kind=Kind.SPECULATORS_DSPARK, draft_vocab_size=96, sliding_window=6)
    draft = write_drafter(folder / "draft", toy)
    target = write_target(folder / "target")
    return {
        profile: export_bundle(
            draft,
            target,
            folder / profile.value,
            ExportOptions(profile=profile, max_context=96, target_graph=True),
        )
        for profile in Profile
    }


def test_the_graphs_use_operators_of_opset_20_and_keep_the_signature(bundles: Bundles) -> None:
    import onnx

    fixed, compat = (Bundle.open(bundles[profile]) for profile in (Profile.FIXED, Profile.COMPAT))
    for name in ("draft", "target"):
        entry = compat.graph(name)
        assert (entry.profile, entry.opset) == ("compat", 20)
        assert entry.signature == fixed.graph(name).signature
        for file in (entry.file, entry.flexible):
            model = onnx.load(str(compat.file(file)), load_external_data=False)
            assert [(item.domain, item.version) for item in model.opset_import] == [("", 20)]
            used = {node.op_type for node in model.graph.node}
            assert not used & NEWER
            for operator in used:
                assert onnx.defs.get_schema(operator, 20).since_version <= 20
    newer = onnx.load(str(fixed.file("draft.onnx")), load_external_data=False)
    assert {node.op_type for node in newer.graph.node} & NEWER, "the comparison compares nothing"


def test_a_pair_decodes_the_same_text_drafts_included(bundles: Bundles) -> None:
    options = DecodeOptions(max_tokens=48, stop_ids=frozenset())
    rounds = []
    for profile in Profile:
        with load(bundles[profile]) as pair:
            rounds.append(
                [
                    (one.token_ids, one.draft_ids)
                    for prompt in ([5, 6, 7, 8], list(range(40)))
                    for one in pair.rounds(prompt, options)
                ]
            )
    assert rounds[0] == rounds[1]


def test_the_target_gives_the_same_logits_and_features(bundles: Bundles) -> None:
    rng = np.random.default_rng(2)
    sessions = [open_graph(Bundle.open(bundles[profile]), "target") for profile in Profile]
    fixed, compat = (GraphTarget(session, 96) for session in sessions)
    for rows, keep in ((20, 17), (1, 18), (6, 24), (9, 30)):
        ids = rng.integers(0, 264, rows)
        want, got = (target.verify(ids, want_logits=True) for target in (fixed, compat))
        assert want.logits is not None
        assert got.logits is not None
        assert np.allclose(got.logits, want.logits, atol=1e-4)
        assert np.allclose(got.features, want.features, atol=1e-4)
        for target in (fixed, compat):
            target.rollback(keep)
    for session in sessions:
        session.close()


@pytest.mark.needs("tensorrt_rtx")
@pytest.mark.parametrize("graph", ["draft", "target"])
def test_tensorrt_rtx_builds_it(graph: str, bundles: Bundles) -> None:
    from draftrt.engines.build import build_plan
    from draftrt.engines.capabilities import Backend
    from draftrt.engines.options import BuildOptions

    options = BuildOptions(backend=Backend.TENSORRT_RTX, sms=(86, 89), graph=graph)
    result = build_plan(bundles[Profile.COMPAT], options)
    assert result.reply is not None
    assert result.reply.num_attentions == 0, "compat graphs spell attention out"
    assert result.entry.size_bytes == result.bundle.file(result.entry.file).stat().st_size > 10_000

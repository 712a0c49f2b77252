"""What a borrowed table brings with it, and whose the head is, against slow float64 answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from safetensors.numpy import load_file

from draftrt.cli import group
from draftrt.export.checkpoint.drafter import LoadedDrafter, load_drafter
from draftrt.export.checkpoint.target import read_target
from tests.parity.slow_drafter import Meaning, Rule, SlowDrafter
from tests.parity.slow_rope import SlowRope
from tests.toys.formats import drafter_arrays
from tests.toys.models import REMOVED, Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target
from tests.unit.export.test_right_answers import CONTEXT

ZLAB, DFLASH2, DSPARK = Kind.ZLAB_DFLASH, Kind.ZLAB_DFLASH2, Kind.DEEPSPEC_DSPARK
SPEC, GEMMA = Kind.SPECULATORS_DFLASH, Kind.DEEPSPEC_GEMMA4
HIDDEN, CAP = 40, 1.5
ROOT = math.sqrt(HIDDEN)
SCALE_KEY, CAP_KEY = "dflash_config.input_embedding_scale", "final_logit_softcapping"
TIED = "tie_word_embeddings"
TEXT = {"model_type": "gemma4_text", CAP_KEY: CAP}


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., LoadedDrafter]:
    """Load a toy drafter against the toy target with keys of its config changed."""

    def load(toy: ToyDrafter, **keys: Any) -> LoadedDrafter:
        return load_drafter(
            write_drafter(tmp_path / "draft", toy), read_target(like(tmp_path, **keys))
        )

    return load


def like(folder: Path, *, wrapped: Any = False, **keys: Any) -> Path:
    """Write the toy target with a config that calls itself something else."""
    target = write_target(folder / "target")
    config = json.loads((target / "config.json").read_text()) | keys
    if wrapped:
        config = {"architectures": ["X"], "model_type": "gemma4", "text_config": config}
    (target / "config.json").write_text(json.dumps(config))
    return target


def drafted(loaded: LoadedDrafter, features: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """What the module computes in the first round."""
    from draftrt.export.check.feeds import empty_caches
    from draftrt.export.check.reference import reference_module
    from draftrt.export.weights.tensors import draft_tensors
    from draftrt.spec import Precision

    tensors = draft_tensors(loaded.spec, loaded.tensors, Precision.FP32, CONTEXT)
    names = ("hidden", "base_logits")
    module = reference_module(loaded.spec, tensors, extra_outputs=names)
    feeds = (torch.tensor([5]), torch.from_numpy(features)[None], torch.tensor([0]))
    with torch.no_grad():
        out = module(*feeds, *empty_caches(loaded.spec, Precision.FP32, CONTEXT))
    made = zip(module.outputs, out, strict=False)
    return {name: array[0].numpy() for name, array in made if name in names}


def slowly(
    toy: ToyDrafter,
    tables: Mapping[str, NDArray[Any]],
    features: NDArray[np.float32],
    **means: Any,
) -> dict[str, NDArray[Any]]:
    """The same from loops, by what the test says that it means."""
    meaning = Meaning(
        family="dflash",
        block=toy.block_size,
        mask_id=toy.mask_token_id,
        drafts_from_row=1,
        rules=[Rule()] * toy.num_layers,
        rope=SlowRope(
            parameters={"rope_type": "default", "rope_theta": 10_000.0},
            head_dim=toy.head_dim,
            max_position=512,
            interleaved=False,
        ),
        num_heads=toy.num_heads,
        num_groups=toy.num_kv_heads,
        head_dim=toy.head_dim,
        num_drafted=toy.vocab_size,
        **means,
    )
    return SlowDrafter({**drafter_arrays(toy), **tables}, meaning).draft(features, 5)


def tables_of(target: Path) -> dict[str, NDArray[Any]]:
    stored = load_file(target / "model.safetensors")
    return {
        "embed_tokens.weight": stored["model.embed_tokens.weight"],
        "lm_head.weight": stored["lm_head.weight"],
    }


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_drafter_on_gemma_4_reads_scaled_rows_and_caps_its_logits(
    wrapped: bool, pair: Callable[..., LoadedDrafter], tmp_path: Path
) -> None:
    toy = ToyDrafter(kind=ZLAB)
    loaded = pair(toy, wrapped=wrapped, **TEXT)
    assert loaded.spec.embedding_scale == pytest.approx(ROOT, rel=1e-6)
    assert loaded.spec.final_logit_softcapping == CAP
    assert "borrowed with the target's embedding" in loaded.spec.sources["embedding_scale"]
    assert "borrowed with the target's head" in loaded.spec.sources[CAP_KEY]
    features = np.random.default_rng(2).standard_normal((9, 120)).astype(np.float32)
    want = slowly(toy, tables_of(tmp_path / "target"), features, embedding_scale=ROOT, cap=CAP)
    got = drafted(loaded, features)
    for name in got:
        assert np.abs(got[name] - want[name]).max() < 2e-4, name


@pytest.mark.parametrize(
    ("kind", "overrides", "keys", "scale", "cap", "warns"),
    [
        (ZLAB, {}, {"model_type": "qwen3"}, 1.0, None, ""),
        (ZLAB, {}, {"model_type": "muse_glimmer", "embedding_multiplier": 3}, 1.0, None, ""),
        (DFLASH2, {}, TEXT, ROOT, CAP, ""),
        (ZLAB, {}, {**TEXT, "model_type": "gemma4_unified_text"}, ROOT, CAP, ""),
        (ZLAB, {}, {**TEXT, CAP_KEY: None}, ROOT, None, ""),
        (ZLAB, {SCALE_KEY: ROOT}, TEXT, ROOT, CAP, ""),
        (
            ZLAB,
            {SCALE_KEY: 1.0},
            TEXT,
            1.0,
            CAP,
            "input_embedding_scale is 1, but",
        ),
        (ZLAB, {CAP_KEY: CAP}, TEXT, ROOT, CAP, ""),
        (
            ZLAB,
            {CAP_KEY: 9.0},
            TEXT,
            ROOT,
            9.0,
            "final_logit_softcapping is 9.0, but",
        ),
        (
            ZLAB,
            {CAP_KEY: 0},
            TEXT,
            ROOT,
            None,
            "final_logit_softcapping is off, but",
        ),
        (SPEC, {}, TEXT, 1.0, None, "the drafter borrows them raw"),
        (ZLAB, {}, {"model_type": "gemma3_text"}, 1.0, None, "the drafter borrows them raw"),
        (ZLAB, {}, {"embedding_multiplier": 12.0}, 1.0, None, "by 12 (embedding_multiplier)"),
        (ZLAB, {}, {"scale_emb": 12}, 1.0, None, "by 12 (scale_emb)"),
        (DSPARK, {}, TEXT, 1.0, None, ""),
        (GEMMA, {}, TEXT, ROOT, 9.0, ""),
    ],
)
def test_whose_scale_and_cap_hold(
    kind: Kind,
    overrides: dict[str, Any],
    keys: dict[str, Any],
    scale: float,
    cap: float | None,
    warns: str,
    pair: Callable[..., LoadedDrafter],
) -> None:
    spec = pair(ToyDrafter(kind=kind, overrides=overrides), **keys).spec
    assert spec.embedding_scale == pytest.approx(scale, rel=1e-6)
    assert spec.final_logit_softcapping == cap
    about = [w for w in spec.warnings if "target scales" in w or "target caps" in w]
    assert len(about) == (1 if warns else 0)
    assert all(warns in warning for warning in about)


def test_a_cap_of_the_target_that_is_no_number_is_refused(
    tmp_path: Path, inspect: Callable[..., Result]
) -> None:
    draft = write_drafter(tmp_path / "draft", ToyDrafter(kind=ZLAB))
    told = inspect(draft, "--target", like(tmp_path, model_type="gemma4_text", **{CAP_KEY: "a"}))
    assert told.exit_code == 1
    assert "target final_logit_softcapping: got 'a', expected a positive number" in told.stderr


def test_a_record_on_gemma_4_is_the_same_again(tmp_path: Path) -> None:
    draft = write_drafter(tmp_path / "draft", ToyDrafter(kind=ZLAB, dtype="bfloat16"))
    target, case = like(tmp_path, **TEXT), tmp_path / "case"
    for line in (
        ["record", draft, "--target", target, "-o", case, "--rounds", "2"],
        ["golden", "--backend", "pytorch", case],
    ):
        done = CliRunner().invoke(group, ["validate", *map(str, line)])
        assert done.exit_code == 0, done.output
    assert json.loads((case / "case.json").read_text())["target_config"] == TEXT


def test_a_tied_drafter_without_a_stored_head_has_its_own(
    pair: Callable[..., LoadedDrafter], tmp_path: Path
) -> None:
    own = np.random.default_rng(4).standard_normal((264, HIDDEN)).astype(np.float32)
    tied = {TIED: True}
    toy = ToyDrafter(kind=ZLAB, overrides=tied, extra={"embed_tokens.weight": own})
    loaded = pair(toy)
    assert loaded.spec.head_source.value == "draft"
    source = "tensor embed_tokens.weight, tied to it: tie_word_embeddings"
    assert loaded.spec.sources["head_source"] == source
    features = np.random.default_rng(2).standard_normal((9, 120)).astype(np.float32)
    want = slowly(toy, {"embed_tokens.weight": own, "lm_head.weight": own}, features)
    got = drafted(loaded, features)
    for name in got:
        assert np.abs(got[name] - want[name]).max() < 2e-4, name


OWN = np.arange(264 * HIDDEN, dtype=np.float32).reshape(264, HIDDEN)
EMBED, HEAD = "embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize(
    ("toy", "head", "warns"),
    [
        (ToyDrafter(kind=GEMMA, omit=(HEAD,)), "target", ""),  # it says false
        (
            ToyDrafter(kind=GEMMA, omit=(HEAD,), overrides={TIED: True}),
            "draft",
            "",
        ),
        (
            ToyDrafter(kind=GEMMA, omit=(HEAD,), overrides={TIED: REMOVED}),
            "draft",
            "",
        ),
        (
            ToyDrafter(kind=DSPARK, omit=(HEAD,), overrides={TIED: REMOVED}),
            "target",
            "does not state tie_word_embeddings: the head is the target's",
        ),
        (ToyDrafter(kind=ZLAB, overrides={TIED: True}), "target", ""),
        (
            ToyDrafter(kind=DSPARK, overrides={TIED: True}),
            "draft",
            "are both stored and differ",
        ),
        (
            ToyDrafter(kind=DSPARK, overrides={TIED: True}, extra={EMBED: OWN, HEAD: OWN.copy()}),
            "draft",
            "",
        ),
    ],
)
def test_whose_the_head_is(
    toy: ToyDrafter, head: str, warns: str, pair: Callable[..., LoadedDrafter]
) -> None:
    spec = pair(toy).spec
    assert spec.head_source.value == head
    assert [w for w in spec.warnings if "head" in w] == [
        w for w in spec.warnings if warns and warns in w
    ]
    assert bool(spec.warnings) == bool(warns)


@pytest.mark.parametrize(
    ("toy", "says"),
    [
        (
            ToyDrafter(
                kind=SPEC,
                overrides={"transformer_layer_config.tie_word_embeddings": True},
                extra={EMBED: OWN},
            ),
            "head_source is stated with different values: tie_word_embeddings = False",
        ),
        (
            ToyDrafter(
                kind=DSPARK,
                omit=(HEAD,),
                overrides={TIED: True, "draft_vocab_size": 300},
            ),
            "but the head is embed_tokens.weight (tie_word_embeddings), which has 264 rows",
        ),
    ],
)
def test_a_tie_that_contradicts_is_refused(
    toy: ToyDrafter, says: str, tmp_path: Path, inspect: Callable[..., Result]
) -> None:
    told = inspect(write_drafter(tmp_path / "draft", toy))
    assert told.exit_code == 1
    assert says in told.stderr

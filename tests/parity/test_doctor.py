"""The acceptance doctor: every suspect is found where it is planted, and none where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from draftrt.spec import DrafterSpec, RopeLayout
from draftrt.validate.doctor_trial import Tried
from tests.parity.recorded_pairs import Recorded, as_it_is, trained_pair

pytestmark = [pytest.mark.parity, pytest.mark.xdist_group("doctor")]
Change = Callable[[DrafterSpec], DrafterSpec]


@pytest.fixture(scope="session")
def prompts(assets: Path) -> list[str]:
    return (assets / "prompts.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="session")
def dflash(assets: Path, prompts: list[str]) -> Recorded:
    return trained_pair(assets, "tiny-dflash", prompts[:6], 40)


@pytest.fixture(scope="session")
def dspark(assets: Path, prompts: list[str]) -> Recorded:
    return trained_pair(assets, "tiny-dspark", prompts[:6], 40)


def rope(**fields: object) -> Change:
    return lambda spec: replace(spec, rope=replace(spec.rope, **fields))  # type: ignore[arg-type]


def layers(**fields: object) -> Change:
    def change(spec: DrafterSpec) -> DrafterSpec:
        changed = tuple(replace(one, **fields) for one in spec.layers)  # type: ignore[arg-type]
        return replace(spec, layers=changed)

    return change


def fact(**fields: object) -> Change:
    return lambda spec: replace(spec, **fields)  # type: ignore[arg-type]


def best(tried: list[Tried]) -> Tried:
    assert tried[0].is_better, [(one.suspect.change, one.gain) for one in tried[:3]]
    return tried[0]


PLANTED: tuple[tuple[str, Change, str, str], ...] = (
    (
        "every tap one up",
        fact(target_layer_ids=(2, 4, 5)),
        "target_layer_ids",
        "[1, 3, 4] instead of [2, 4, 5] (every tap one layer down)",
    ),
    (
        "interleaved",
        rope(layout=RopeLayout.INTERLEAVED),
        "rope.layout",
        "neox instead of interleaved",
    ),
    ("mask token", fact(mask_token_id=0), "mask_token_id", "3 (<|mask|>) instead of 0"),
)
MORE: tuple[tuple[str, Change, str, str], ...] = (
    (
        "last tap one up",
        fact(target_layer_ids=(1, 3, 5)),
        "target_layer_ids",
        "[1, 3, 4] instead of [1, 3, 5] (tap 2 one layer down)",
    ),
    (
        "taps reversed",
        fact(target_layer_ids=(4, 3, 1)),
        "target_layer_ids",
        "[1, 3, 4] instead of [4, 3, 1] (features concatenated in the opposite order)",
    ),
    ("theta", rope(theta=1e6), "rope.theta", "10000 (the target's) instead of 1e+06"),
    ("window of 8", layers(window=8), "window", "full attention instead of 8"),
    (
        "embedding scale",
        fact(embedding_scale=math.sqrt(80)),
        "embedding_scale",
        "1 instead of 8.94427",
    ),
)


def check(pair: Recorded, change: Change, name: str, what: str) -> None:
    right = sum(len(text.ids) for text in pair.texts)
    wrong = as_it_is(change(pair.spec))
    tried = pair.try_all(wrong)
    found = best(tried)
    assert (found.suspect.fact, found.suspect.change) == (name, what)
    assert found.suspect.spec == pair.spec
    case = pair.plant(as_it_is(pair.spec))
    assert found.length == pytest.approx(1 + sum(map(sum, case.base)) / sum(map(len, case.base)))
    assert right > 0


@pytest.mark.parametrize(
    ("change", "name", "what"), [one[1:] for one in PLANTED], ids=[one[0] for one in PLANTED]
)
def test_a_fact_planted_in_the_shipped_pair_is_named(
    dflash: Recorded, change: Change, name: str, what: str
) -> None:
    check(dflash, change, name, what)


def test_the_shipped_pair_is_clean(dflash: Recorded) -> None:
    tried = dflash.try_all(as_it_is(dflash.spec))
    assert [one.suspect.change for one in tried if one.is_better] == []
    assert len(tried) > 20
    assert max(one.gain.mean for one in tried) < 0.5

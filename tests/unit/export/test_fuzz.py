"""Whatever a config holds, reading it ends in an answer or in an expected failure, and soon."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from draftrt.export.checkpoint.target import TargetCheckpoint
from tests.toys.models import Kind
from tests.unit.export.fuzz import DEEP, as_text, check, nested_text

ROUNDS = 80  # of each kind

JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    1.5,
    7.0,
    -0.25,
    10**18,
    10**400,
    -(10**400),
    1e-320,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    "4",
    "qwen3",
    "sliding_attention",
    "\ud800",
    "x" * 5000,
    [],
    [1],
    [1, 3, 4],
    [[]],
    [None, True],
    ["full_attention", {}],
    list(range(3000)),
    {},
    {"a": {"b": 1}},
    {"rope_type": [1], "rope_theta": {}},
    [[[[[[[[[[[[1]]]]]]]]]]]],
    DEEP,
)


def paths(config: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a config, however deep."""
    items = (
        config.items()
        if isinstance(config, dict)
        else enumerate(config)
        if isinstance(config, list)
        else ()
    )
    for key, value in items:
        yield (*prefix, key)
        yield from paths(value, (*prefix, key))


def parent_of(config: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        config = config[key]
    return config


def mutate(config: Any, rng: random.Random) -> None:
    """Delete, retype, move or add one entry."""
    path = rng.choice(list(paths(config)))
    parent, key = parent_of(config, path), path[-1]
    action = rng.random()
    if action < 0.3:
        del parent[key]
    elif action < 0.85:
        parent[key] = copy.deepcopy(rng.choice(JUNK))
    elif action < 0.93 and isinstance(parent, dict):
        other = rng.choice(list(paths(config)))
        parent[key] = copy.deepcopy(parent_of(config, other)[other[-1]])
    elif isinstance(parent, dict):
        name = rng.choice([str(path[-1]) for path in paths(config)] + ["\udcff", "surprise", ""])
        parent[name] = copy.deepcopy(rng.choice(JUNK))


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_a_damaged_config_never_ends_in_a_traceback(
    kind: Kind,
    toys: Mapping[Kind, Path],
    target: TargetCheckpoint,
    with_config: Callable[[Path, Any], Path],
) -> None:
    original = json.loads((toys[kind] / "config.json").read_text())
    assert check(with_config(toys[kind], original), target, "untouched")
    failures = 0
    for seed in range(ROUNDS):
        rng = random.Random(f"{kind.value} {seed}")
        config = copy.deepcopy(original)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            mutate(config, rng)
        folder = with_config(toys[kind], as_text(config))
        failures += not check(folder, target if seed % 3 else None, f"{kind.value}, seed {seed}")
    assert failures > ROUNDS // 3, "the mutations hardly ever matter"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "3",
        '"config"',
        "{",
        '{"architectures": ["DFlashDraftModel"]',
        nested_text(30),
        nested_text(500),
        nested_text(960),
        nested_text(100_000),
        '{"block_size": ' + "9" * 5000 + "}",
        "\ufeff{}",
        '{"a": 1}' * 2,
        '{"architectures": ["DFlashDraftModel"], "block_size": NaN, "vocab_size": -Infinity}',
    ],
    ids=lambda text: f"{text[:24]!r} of {len(text)}",
)
def test_a_config_that_is_no_description_is_refused(
    text: str,
    toys: Mapping[Kind, Path],
    target: TargetCheckpoint,
    with_config: Callable[[Path, Any], Path],
) -> None:
    folder = with_config(toys[Kind.ZLAB_DFLASH], text)
    assert not check(folder, target, text[:80])

"""Outputs of random JSON schemas: each one parses, and is what its schema says."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import draftrt
from draftrt import DecodeOptions, Grammar
from draftrt.cli import group

pytest.importorskip("onnxruntime")
pytest.importorskip("llguidance")
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("run")]
WORDS = ("red", "green bags", "ä", 'a "quoted" one', "x\\y", "20")


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema whose every value is short."""
    kinds = ["enum", "const", "boolean", "null", "integer", "string"]
    kind = rng.choice([*kinds, *(["object", "array", "anyOf"] if depth < 3 else [])])
    if kind == "enum":
        return {"enum": rng.sample([*WORDS, 1, -2.5, True, None], rng.randint(1, 4))}
    if kind == "const":
        return {"const": rng.choice([*WORDS, 7, False, [1, "a"], {"a": None}])}
    if kind == "integer":
        low = rng.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 900)}
    if kind == "string":
        return {"type": "string", "maxLength": rng.randint(0, 8)}
    if kind == "array":
        most = rng.randint(0, 3)
        items = random_schema(rng, depth + 1)
        return {"type": "array", "items": items, "minItems": rng.randint(0, most), "maxItems": most}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    if kind == "object":
        names = rng.sample(["a", "name", "list of", "n1", "ü"], rng.randint(0, 4))
        return {
            "type": "object",
            "properties": {name: random_schema(rng, depth + 1) for name in names},
            "required": [name for name in names if rng.random() < 0.7],
            "additionalProperties": False,
        }
    return {"type": kind}


def obeys(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is what a schema of `random_schema` says."""
    if "anyOf" in schema:
        return any(obeys(value, one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        return any(json.dumps(value) == json.dumps(one) for one in allowed)
    kind = schema["type"]
    if kind == "object":
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(schema["properties"])
            and all(obeys(one, schema["properties"][name]) for name, one in value.items())
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and schema["minItems"] <= len(value) <= schema["maxItems"]
            and all(obeys(one, schema["items"]) for one in value)
        )
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    if kind == "integer":
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole and schema["minimum"] <= value <= schema["maximum"]
    return value is None if kind == "null" else isinstance(value, bool)


@pytest.fixture(scope="module")
def pair(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("schemas") / "bundle"
    words = ["export", assets / "tiny-dflash", "--target", assets / "tiny-target", "-o", out]
    done = CliRunner().invoke(group, [str(one) for one in [*words, "--max-context", 1024]])
    assert done.exit_code == 0, done.output
    with draftrt.load(out) as opened:
        yield opened


@pytest.mark.parametrize(
    "count", [12, pytest.param(500, marks=pytest.mark.extended)], ids=["few", "many"]
)
def test_outputs_of_random_schemas_parse_and_obey(pair: Any, count: int) -> None:
    rng = random.Random(11)
    drafted = 0
    for number in range(count):
        schema = random_schema(rng)
        options = DecodeOptions(
            max_tokens=900, temperature=rng.choice([0.0, 1.0]), seed=number, schedule="all"
        )
        done = pair.generate("A song of 20:", options, grammar=Grammar.json_schema(schema))
        assert done.finish == "stop", (schema, done.text)
        assert obeys(json.loads(done.text), schema), (schema, done.text)
        drafted += sum(done.stats.accepted)
        if not number % 10:
            plain = pair.generate(
                "A song of 20:",
                DecodeOptions(max_tokens=900),
                grammar=Grammar.json_schema(schema),
                speculate=False,
            )
            quick = pair.generate(
                "A song of 20:", DecodeOptions(max_tokens=900), grammar=Grammar.json_schema(schema)
            )
            assert quick.token_ids == plain.token_ids
    assert drafted > count

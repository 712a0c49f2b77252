"""Random JSON schemas: every output parses, obeys its schema, and is that of the target alone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.runtime.decoding.grammar import Grammar
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import load
from draftrt.runtime.pair import Pair

pytest.importorskip("llguidance")
pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.e2e, pytest.mark.extended, pytest.mark.xdist_group("schemas")]

NUM_SCHEMAS = 500
WORDS = ("red", "a b", "x-1", 'say "hi"', "ümlaut", "back\\slash", "")


@pytest.fixture(scope="module")
def pair(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    out = tmp_path_factory.mktemp("schemas") / "bundle"
    options = ExportOptions(max_context=1024, sampled=True)
    export_bundle(assets / "tiny-dspark", assets / "tiny-target", out, options)
    with load(out) as opened:
        yield opened


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema whose outputs are short."""
    kinds = ["string", "integer", "boolean", "null", "enum", "const", "number"]
    kinds += ["object", "array", "anyOf"] * 2 if depth < 3 else []
    match rng.choice(kinds if depth else ["object", "array", "anyOf", "object"]):
        case "string":
            return {"type": "string", "maxLength": rng.randint(0, 6)}
        case "integer":
            low = rng.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 900)}
        case "number":
            return {"enum": [rng.randint(0, 99) / 8, -1.5, 0]}
        case "enum":
            return {"enum": rng.sample(WORDS, rng.randint(1, 4))}
        case "const":
            return {"const": rng.choice([*WORDS, 7, None, True, [1, 2]])}
        case "array":
            most = rng.randint(0, 3)
            items = random_schema(rng, depth + 1)
            return {"type": "array", "items": items, "minItems": most // 2, "maxItems": most}
        case "anyOf":
            return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
        case "object":
            names = rng.sample(WORDS[:-1], rng.randint(0, 4))
            return {
                "type": "object",
                "properties": {name: random_schema(rng, depth + 1) for name in names},
                "required": names[: rng.randint(0, len(names))],
                "additionalProperties": False,
            }
        case kind:
            return {"type": kind}


def obeys(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value obeys a schema of `random_schema`, said by its words alone."""
    if "anyOf" in schema:
        return any(obeys(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return bool(value == schema["const"])
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
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    return isinstance(value, bool) if kind == "boolean" else value is None


@pytest.mark.slow
def test_every_output_of_random_schemas_parses(pair: Pair) -> None:
    """By turns greedy, where the ids are those of the target alone, and drawn."""
    rng = random.Random(1)
    for number in range(NUM_SCHEMAS):
        schema = random_schema(rng)
        grammar = Grammar.json_schema(schema)
        options = DecodeOptions(
            max_tokens=900, temperature=number % 2 * 0.9, seed=number, proposal="sampled"
        )
        prompt = "Table of 10 up to 18:"
        done = pair.generate(prompt, options, grammar=grammar)
        assert done.finish == "stop", (schema, done.text)
        assert obeys(json.loads(done.text), schema), (schema, done.text)
        if number % 2 == 0:
            alone = pair.generate(prompt, options, grammar=grammar, speculate=False)
            assert alone.token_ids == done.token_ids, schema

"""A manifest that another build wrote, or that was edited, is refused with its path and a hint."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draftrt import __version__
from draftrt.bundle import write_manifest
from draftrt.bundle_files import VERSION, read_manifest
from draftrt.cli import group
from draftrt.errors import BundleError
from draftrt.manifest import FileEntry, GraphEntry, Manifest, PlanEntry
from draftrt.signature import DimRange, Signature, TensorSpec
from draftrt.spec import DecoderSpec, Precision, RopeLayout, RopeSpec, TargetSpec

Place = tuple[str | int, ...]
ROPE = RopeSpec(
    layout=RopeLayout.NEOX,
    theta=1e4,
    type="default",
    rotary_dim=4,
    head_dim=4,
    max_position_embeddings=64,
)
OF_BOTH = {"hidden_size": 8, "num_layers": 2, "vocab_size": 32, "tie_word_embeddings": True}


def sources(kind: type[TargetSpec | DecoderSpec]) -> dict[str, str]:
    return {one.name: "config.json" for one in dataclasses.fields(kind) if one.name != "sources"}


def manifest() -> Manifest:
    """A target alone, with a graph and a plan."""
    decoder: dict[str, Any] = {
        **OF_BOTH,
        "intermediate_size": 16,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 4,
        "rms_norm_eps": 1e-6,
        "activation": "silu",
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "qk_norm"), False),
        "rope": ROPE,
        "windows": (None, 16),
        "table_rows": 32,
    }
    target: dict[str, Any] = {
        **OF_BOTH,
        "architecture": "Qwen3ForCausalLM",
        "model_type": "qwen3",
        "table_rows": 32,
        "eos_token_ids": (1,),
    }
    graph = GraphEntry(
        file="target.onnx",
        data="target.onnx.data",
        precision=Precision.FP32,
        profile="fixed",
        opset=24,
        max_context=64,
        signature=Signature(
            inputs=(TensorSpec(name="ids", dtype="int64", shape=(1, "S")),),
            outputs=(),
            dimensions={"S": DimRange(min=1, opt=1, max=64)},
        ),
    )
    plan = PlanEntry(
        file="plans/a.plan",
        log="plans/a.log",
        graph="target",
        graph_sha256="0",
        backend="tensorrt-rtx",
        backend_version="1",
        sms=(86,),
        options={"tf32": "off"},
        build_seconds=1.0,
        peak_rss_bytes=1,
        size_bytes=1,
    )
    return Manifest(
        drafter=None,
        target=TargetSpec(**target, sources=sources(TargetSpec)),
        graphs={"target": graph},
        files={
            name: FileEntry(bytes=1, sha256="0") for name in ("target.onnx", "target.onnx.data")
        },
        inputs={},
        tools={"draftrt": __version__},
        command="draftrt export",
        created="2026-01-01T00:00:00+00:00",
        plans={plan.file: plan},
        decoder=DecoderSpec(**decoder, sources=sources(DecoderSpec)),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_manifest(tmp_path, manifest())
    return tmp_path


def edited(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


def refused(folder: Path, content: object) -> BundleError:
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(BundleError) as refusal:
        read_manifest(folder)
    return refusal.value


@pytest.mark.parametrize("version", [1, 2, VERSION + 1])
def test_a_bundle_of_another_version_has_to_be_exported_again(version: int, folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps({**edited(folder), "version": version}))
    says = f"got format ('draftrt-bundle', {version}), expected ('draftrt-bundle', {VERSION})"
    for command in (["inspect"], ["run", "--prompt", "a"], ["build", "--sm", "89"]):
        done = CliRunner().invoke(group, [command[0], str(folder), *command[1:]])
        assert done.exit_code == 1, done.output
        assert says in done.stderr
        assert "export the bundle again with this version of draftrt" in done.stderr


def test_a_manifest_is_read_as_it_was_written(folder: Path) -> None:
    assert read_manifest(folder) == manifest()


def test_a_bundle_that_an_older_build_wrote_is_to_be_exported_again(folder: Path) -> None:
    content = edited(folder)
    del content["decoder"]["gemma4"], content["decoder"]["sources"]["gemma4"]
    error = refused(folder, content)
    assert error.message == (
        f"{folder / 'manifest.json'}: DecoderSpec: facts without a source ['gemma4'], sources "
        "without a fact []"
    )
    assert error.hint == (
        f"the bundle was written by another build of draftrt {__version__}, or its manifest was "
        "edited; export it again"
    )
    content["tools"]["draftrt"] = "0.0.7"
    assert f"by draftrt 0.0.7, and this is {__version__}, or" in refused(folder, content).hint
    for words in (["inspect", str(folder)], ["run", str(folder), "--prompt", "a"]):
        done = CliRunner().invoke(group, words)
        assert done.exit_code == 1
        assert "without a source ['gemma4']" in done.stderr
        assert "Hint: the bundle was written by draftrt 0.0.7" in done.stderr


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (
            ("decoder", "qk_norm"),
            None,
            "manifest.decoder: unknown keys [], missing keys ['qk_norm'",
        ),
        (("decoder", "gemma5"), 1, "manifest.decoder: unknown keys ['gemma5'], missing keys []"),
        (("decoder", "head_dim"), "4", "manifest.decoder.head_dim: got '4', expected int"),
        (("decoder", "windows", 1), "16", "manifest.decoder.windows[1]: got '16', expected int"),
        (("decoder", "rope", "layout"), "odd", "manifest.decoder.rope.layout: got 'odd', expected"),
        (("target", "sources", "eos"), "x", "sources without a fact ['eos']"),
        (("graphs", "target", "opset"), True, "manifest.graphs.target.opset: got True, expected"),
        (("graphs", "target", "signature", "dimensions", "S", "min"), 65, "1 <= min <= opt <= max"),
        (("plans", "plans/a.plan", "sms"), 86, "plans/a.plan.sms: got 86, expected a list"),
        (("created",), None, "manifest: unknown keys [], missing keys ['created']"),
    ],
)
def test_a_fact_that_lacks_is_new_or_has_another_type_is_named(
    folder: Path, place: Place, value: object, said: str
) -> None:
    content = edited(folder)
    *way, last = place
    at: Any = content
    for step in way:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    error = refused(folder, content)
    assert str(folder / "manifest.json") in error.message
    assert said in error.message
    assert "export it again" in error.hint


def places(value: object, way: Place = ()) -> Iterator[Place]:
    entries = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
    for step, inner in entries:
        yield (*way, step)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*way, step))


def test_whatever_is_lost_or_changed_is_read_or_refused_in_words(folder: Path) -> None:
    """Every entry, one at a time: gone, and of every other type."""
    whole, refusals = edited(folder), []
    for place in places(whole):
        values: tuple[Any, ...] = (..., None, "x", {})
        for value in values:
            content = copy.deepcopy(whole)
            at: Any = content
            for step in place[:-1]:
                at = at[step]
            if value is ...:
                del at[place[-1]]
            else:
                at[place[-1]] = value
            (folder / "manifest.json").write_text(json.dumps(content))
            try:
                read_manifest(folder)
            except BundleError as error:
                refusals.append(error)
    assert len(refusals) > 300
    assert all(str(folder / "manifest.json") in error.message for error in refusals)
    assert all("export" in error.hint and "again" in error.hint for error in refusals)


def test_a_file_in_the_place_of_a_bundle_is_told(folder: Path) -> None:
    done = CliRunner().invoke(group, ["inspect", str(folder / "manifest.json")])
    assert done.exit_code == 1
    with pytest.raises(BundleError, match=r"got a file, expected a folder"):
        read_manifest(folder / "manifest.json")
    (folder / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(BundleError, match="cannot be read as JSON"):
        read_manifest(folder)
    says = f"got format (None, None), expected ('draftrt-bundle', {VERSION})"
    assert says in refused(folder, {}).message

"""`draftrt doctor acceptance` on the shipped pair: clean, read wrongly, and with a broken graph."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import helper, numpy_helper

from draftrt.bundle import Bundle, hash_files, write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.cli import group
from draftrt.errors import FeedError
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.runtime.prompts import Form, asked
from draftrt.validate.doctor.recording import open_states
from draftrt.validate.rounds.plan import Feeds, encode_prompts, real_rounds
from tests.parity.planted_graphs import set_attribute

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("doctor")]


@pytest.fixture(scope="session")
def exported(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Exports the shipped DFlash drafter, some facts of its config changed."""

    def export(**facts: Any) -> Path:
        folder = tmp_path_factory.mktemp("doctor")
        draft = Path(shutil.copytree(assets / "tiny-dflash", folder / "draft"))
        config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
        config["dflash_config"] |= facts
        (draft / "config.json").write_text(json.dumps(config), encoding="utf-8")
        options = ExportOptions(max_context=256)
        return export_bundle(draft, assets / "tiny-target", folder / "bundle", options)

    return export


@pytest.fixture(scope="session")
def shipped(exported: Callable[..., Path]) -> Path:
    """The shipped DFlash drafter as it is; not to be changed."""
    return exported()


def doctor(bundle: Path, assets: Path, *arguments: object) -> Result:
    words = ["doctor", "acceptance", str(bundle), "--prompts", str(assets / "prompts.txt")]
    words += ["--no-forms", "--num-prompts", "6", "--max-tokens", "40"]
    return CliRunner().invoke(group, [*words, *map(str, arguments)])


def test_taps_that_count_from_one_are_named_through_the_command(
    exported: Callable[..., Path], assets: Path
) -> None:
    bundle = exported(target_layer_ids=[2, 4, 5])
    draft, target = assets / "tiny-dflash", assets / "tiny-target"
    done = doctor(bundle, assets, "--draft", draft, "--target", target, "--json")
    assert done.exit_code == 3, done.output
    found = json.loads(done.stdout)
    assert found["checkpoint"]["facts"] == [
        {"name": "target_layer_ids", "bundle": "[2, 4, 5]", "checkpoint": "[1, 3, 4]"}
    ]
    assert found["checkpoint"]["weights"] == []
    best = found["suspects"][0]
    assert (best["fact"], best["better"]) == ("target_layer_ids", True)
    assert best["change"].startswith("target_layer_ids [1, 3, 4] instead of [2, 4, 5]")
    assert best["acceptance_length"] > found["acceptance_length"]["mean"] + 0.5
    assert found["graph_is_worse_than_module"] is False
    assert "acceptance is not what it could be" in done.stderr


@pytest.mark.extended
def test_the_shipped_pair_is_as_good_as_its_card(
    exported: Callable[..., Path], assets: Path
) -> None:
    done = doctor(exported(), assets, "--raw", "--expected-length", 4, "--num-prompts", 12)
    assert done.exit_code == 0, done.output
    assert "as good as its card: 4.0 expected, within the measured interval" in done.stdout
    assert "raises acceptance" not in done.stdout


def spoil(bundle: Path, change: Callable[[Any], None]) -> None:
    for file in ("draft.onnx", "draft.flexible.onnx"):
        model = onnx.load(str(bundle / file), load_external_data=False)
        change(model.graph)
        onnx.save(model, str(bundle / file))
    write_manifest(bundle, replace(read_manifest(bundle), files=hash_files(bundle)))


def interleaved(graph: Any) -> None:
    for node in graph.node:
        if node.op_type == "RotaryEmbedding":
            set_attribute(node, "interleaved", 1)


def other_ids(graph: Any) -> None:
    """Let every draft be the id 511, which no text has."""
    node = next(one for one in graph.node if "draft_ids" in one.output)
    graph.initializer.append(numpy_helper.from_array(np.int64(0), "planted_zero"))
    graph.initializer.append(numpy_helper.from_array(np.int64(511), "planted_id"))
    place = list(graph.node).index(node)
    inner = "planted_product"
    graph.node.insert(
        place, helper.make_node("Mul", [node.input[0], "planted_zero"], [inner], name=inner)
    )
    graph.node.insert(
        place + 1, helper.make_node("Add", [inner, "planted_id"], ["planted_ids"], name="planted")
    )
    graph.node[place + 2].input[0] = "planted_ids"


@pytest.mark.extended
@pytest.mark.parametrize(("change", "is_never"), [(interleaved, False), (other_ids, True)])
def test_a_broken_graph_is_told_from_a_wrong_fact(
    exported: Callable[..., Path],
    assets: Path,
    change: Callable[[Any], None],
    is_never: bool,
) -> None:
    bundle = exported()
    spoil(bundle, change)
    done = doctor(bundle, assets)
    assert done.exit_code == 3, done.output
    assert "drafts a round fewer than its own PyTorch module" in done.stdout
    assert "`draftrt validate bisect` says where" in done.stdout
    assert ("acceptance length of exactly 1.000" in done.stdout) is is_never


@pytest.mark.extended
def test_another_form_of_the_prompts_is_told_and_no_false_alarm(
    exported: Callable[..., Path], assets: Path
) -> None:
    done = doctor(exported(), assets, "--chat", "--forms", "--num-prompts", 24, "--json")
    assert done.exit_code == 0, done.output
    (form,) = json.loads(done.stdout)["forms"]
    assert form["form"] == "as it is"
    assert form["better"] is False


def test_the_bundles_own_target_has_the_states_of_transformers(shipped: Path, assets: Path) -> None:
    bundle, layers = Bundle.open(shipped), [-1, 0, 3, 5]
    own = open_states(bundle, None, layers)
    theirs = open_states(bundle, assets / "tiny-target", layers)
    assert type(own) is not type(theirs)
    ids = [17, 4, 300, 4, 5, 99, 101, 7]
    for _ in range(2):  # a second text does not see the first
        got, want = own.run(ids), theirs.run(ids)
        assert got.shape == want.shape == (1, 8, 4 * 80)
        np.testing.assert_allclose(got, want, atol=1e-4)
        ids = ids[::-1]
    rows = want[0, :, -80:].copy()
    np.testing.assert_allclose(own.final_norm(rows), theirs.final_norm(rows), atol=1e-5)
    norms = np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-6)
    ratio = own.final_norm(rows) / (rows / norms)
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:1], ratio.shape), rtol=1e-3)


def test_too_few_rounds_are_refused(shipped: Path, assets: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("one\ntwo\nthree\n", encoding="utf-8")
    done = doctor(shipped, assets, "--prompts", short, "--max-tokens", 8)
    assert done.exit_code == 1
    assert "texts have a round with a whole block of 8 tokens behind it" in done.stderr
    assert "give more prompts, or a larger --max-tokens" in done.stderr


def test_prompts_that_do_not_fit_are_all_named_before_one_is_decoded(
    shipped: Path, assets: Path, tmp_path: Path
) -> None:
    long = tmp_path / "long.txt"
    long.write_text("one\n\n" + "two " * 99 + "\nthree\n" + "four " * 99, encoding="utf-8")
    done = doctor(shipped, assets, "--prompts", long, "--max-tokens", 200)
    assert done.exit_code == 1
    # The last anchor is the last token but one, and a block of 8 begins with it: 248 + 2 tokens.
    first, *lines = done.stderr.splitlines()
    assert first.startswith("Error: 2 of 4 prompts (chat template) do not fit, expected 1 to 50")
    assert [line.split(",")[0] for line in lines] == [
        "  prompt 2",
        "  prompt 4",
        "  Hint: shorten them",
    ]


def test_features_of_prompts_that_do_not_fit_are_refused_before_the_first(shipped: Path) -> None:
    bundle = Bundle.open(shipped)
    rounds = features_of(bundle, "one", "", "two " * 99)  # 1, 4 and 8 new rows behind each
    with pytest.raises(FeedError) as refusal:
        next(rounds)
    first, *lines = str(refusal.value).splitlines()
    assert first.startswith(f"2 of 3 prompts do not fit, expected 1 to {256 - 13 - 8} tokens each")
    assert [line.split(",")[0] for line in lines] == [
        *("  prompt 2", "  prompt 3", "  Hint: shorten them"),
    ]
    assert len(list(features_of(bundle, "one", "two"))) == 8


def features_of(bundle: Bundle, *texts: str) -> Iterator[Feeds]:
    prompts = list(map(asked, texts))
    ids, form = encode_prompts(bundle, prompts, Form(is_chat=False), lambda line: None)
    assert form == "as it is"
    return real_rounds(bundle, prompts, ids, 4)


def test_a_target_that_is_none_is_refused_before_anything_is_decoded(
    shipped: Path, assets: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for place, said in (
        (tmp_path, "config.json: missing"),
        (tmp_path / "file", "file: got a file, expected a folder"),
        (tmp_path / "absent", "config.json: missing"),
    ):
        done = doctor(shipped, assets, "--target", place)
        assert done.exit_code == 1
        assert said in done.stderr

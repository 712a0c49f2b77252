"""`draftrt run` and `draftrt.runtime.load` on a trained pair, exported by the command line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import draftrt
from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.errors import BundleError
from draftrt.runtime.cli import explanation
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import load
from draftrt.runtime.targets.snapshots import common_length
from draftrt.validate.records.trajectories import read_trajectories, replay

pytest.importorskip("onnxruntime")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("run")]


@pytest.fixture(scope="module")
def pair(root: Path) -> Path:
    return root / "tests" / "golden-pairs"


@pytest.fixture(scope="module")
def expected(pair: Path) -> list[dict[str, Any]]:
    """What the publisher's own loop did, without a confidence threshold and with one."""
    rows: list[dict[str, Any]] = json.loads((pair / "expected-dspark.json").read_text())
    return rows


def run_cli(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def run_json(*arguments: object) -> dict[str, Any]:
    done = run_cli("run", *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "index", [0, 6, 7, 13], ids=["first", "last", "first, threshold", "last, threshold"]
)
def test_greedy_ids_are_the_publishers_and_the_targets(
    bundle: Path, expected: list[dict[str, Any]], index: int
) -> None:
    row = expected[index]
    found = run_json(
        bundle,
        "--prompt",
        row["prompt"],
        "--raw",
        "--max-tokens",
        96,
        "--ignore-eos",
        "--confidence-threshold",
        row["confidence_threshold"],
    )
    assert found["prompt_ids"] == row["prompt_ids"]
    assert found["token_ids"] == row["output_ids"]
    assert found["finish"] == "length"


def test_every_round_keeps_what_the_publishers_loop_kept(
    bundle: Path, expected: list[dict[str, Any]]
) -> None:
    with load(bundle) as pair:
        for row in expected[::3]:  # `draftrt validate trajectories` takes them all
            options = DecodeOptions(
                max_tokens=96,
                stop_ids=frozenset(),
                confidence_threshold=row["confidence_threshold"],
                schedule="all",
            )
            rounds = list(pair.rounds(row["prompt_ids"], options))[1:]
            # Theirs counts the pending anchor differently and so goes on for one round more.
            accepted = [one.num_accepted for one in rounds]
            assert accepted == row["accepted_draft_lengths"][: len(rounds)]
            assert len(row["accepted_draft_lengths"]) - len(rounds) in (0, 1)
            verified = [one.num_verified for one in rounds]
            assert verified == row["proposal_lengths"][: len(rounds)]


def test_text_goes_to_stdout_and_figures_to_stderr(
    bundle: Path, expected: list[dict[str, Any]]
) -> None:
    prompt = expected[0]["prompt"]
    words = (bundle, "--prompt", prompt, "--max-tokens", 24, "--schedule", "all")
    done, found = run_cli("run", *words), run_json(*words)
    assert done.exit_code == 0
    assert done.stdout == found["text"] + "\n"
    assert "24 tokens; first after" in done.stderr
    assert f"acceptance length {found['acceptance_length']:.2f} over" in done.stderr
    assert "a round: draft" in done.stderr
    assert "drafter cache: 512 bytes a token, 160 tokens at most" in done.stderr


def test_an_output_obeys_its_grammar(bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    schema, lark = tmp_path / "schema.json", tmp_path / "grammar.lark"
    entry = {"type": "integer", "minimum": 0, "maximum": 999}
    schema.write_text(json.dumps({"type": "array", "items": entry, "maxItems": 5}))
    lark.write_text('start: "yes" | "no" " " start')
    words = (bundle, "--prompt", "1, 2, 4,", "--max-tokens", 48)
    found = [run_json(*words, "--json-schema", schema, *more) for more in ((), ("--plain",))]
    assert found[0]["token_ids"] == found[1]["token_ids"]
    assert all(0 <= number <= 999 for number in json.loads(found[0]["text"]))
    done = run_cli("run", *words, "--regex", "[0-9]{4}(, [0-9]{3}){3}")
    assert re.fullmatch("[0-9]{4}(, [0-9]{3}){3}\n", done.stdout)
    assert re.fullmatch("(no )*yes", run_json(*words, "--lark", lark)["text"])


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("--regex", "a("), 2, "unclosed group"),
        (("--regex", "a", "--lark", "{there}"), 2, "exclude each other"),
        (("--lark", "{there}"), 2, "lark"),
        (("--json-schema", "{there}"), 2, "expected JSON data"),
        (("--json-schema", "{gone}"), 1, "gone: missing"),
    ],
)
def test_what_is_no_grammar_is_refused(
    bundle: Path, tmp_path: Path, words: tuple[str, ...], status: int, told: str
) -> None:
    pytest.importorskip("llguidance")
    (tmp_path / "there").write_text("{")
    names = {"there": tmp_path / "there", "gone": tmp_path / "gone"}
    done = run_cli("run", bundle, "--prompt", "a", *(word.format(**names) for word in words))
    assert done.exit_code == status
    assert told in done.stderr


def test_plain_decoding_gives_the_same_text(bundle: Path, expected: list[dict[str, Any]]) -> None:
    arguments = (
        bundle,
        "--prompt",
        expected[2]["prompt"],
        "--raw",
        "--max-tokens",
        40,
        "--ignore-eos",
    )
    plain, drafted = run_json(*arguments, "--plain"), run_json(*arguments)
    assert plain["token_ids"] == drafted["token_ids"] == expected[2]["output_ids"][:40]
    assert (plain["num_rounds"], plain["acceptance_length"]) == (0, 0.0)


def test_a_target_exported_alone_decodes_plainly(
    pair: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    done = run_cli("export", "--target", pair / "tiny-target", "-o", out, "--max-context", 160)
    assert done.exit_code == 0, done.output
    arguments = (
        out,
        "--prompt",
        expected[1]["prompt"],
        "--raw",
        "--max-tokens",
        40,
        "--ignore-eos",
    )
    found = run_json(*arguments)
    assert found["token_ids"] == expected[1]["output_ids"][:40]
    assert (found["num_rounds"], found["draft_s"]) == (0, 0.0)


def test_the_package_itself_opens_a_bundle(bundle: Path, expected: list[dict[str, Any]]) -> None:
    with draftrt.load(bundle) as opened:
        options = draftrt.DecodeOptions(max_tokens=12)
        text = "".join(str(chunk) for chunk in opened.stream(expected[0]["prompt"], options))
        assert text == opened.generate(expected[0]["prompt"], options).text != ""


def test_prompts_go_through_the_targets_template_unless_raw(bundle: Path) -> None:
    few = ("--max-tokens", 4)
    written = "<|im_start|>user\nfor<|im_end|>\n<|im_start|>assistant\n"
    raw = run_json(bundle, "--prompt", written, "--raw", *few)
    found = run_json(bundle, "--prompt", "for", *few)
    assert (found["form"], found["prompt_ids"]) == ("chat template", raw["prompt_ids"])
    assert run_json(bundle, "--prompt", "for", "--chat", *few)["prompt_ids"] == raw["prompt_ids"]
    assert raw["form"] == "as it is"
    done = run_cli("run", bundle, "--prompt", "for", *few)
    assert done.stderr.startswith("prompts: chat template\n")
    with load(bundle) as pair:
        assert list(pair.encode(written)) == raw["prompt_ids"]
        assert list(pair.encode([{"role": "user", "content": "for"}])) == raw["prompt_ids"]


def test_several_prompts_are_all_decoded_in_order(bundle: Path, tmp_path: Path) -> None:
    whole, lines = tmp_path / "whole.txt", tmp_path / "lines.jsonl"
    whole.write_text("one\ntwo\n")
    system = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "six"}]}
    lines.write_text(json.dumps({"prompt": "five"}) + "\n" + json.dumps(system) + "\n")
    words = ["--prompt", "zero", "--prompt", "-", "--prompt-file", whole, "--prompts", lines]
    few = ["--max-tokens", 3, "--ignore-eos"]
    arguments = list(map(str, ["run", bundle, *words, *few]))
    done = CliRunner().invoke(group, [*arguments, "--json"], input="from a pipe\n")
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.stdout.splitlines()]
    with load(bundle) as pair:
        asked = [
            *([{"role": "user", "content": text}] for text in ("zero", "from a pipe")),
            *([{"role": "user", "content": text}] for text in ("one\ntwo", "five")),
            system["messages"],
        ]
        assert [one["prompt_ids"] for one in found] == [list(pair.encode(one)) for one in asked]
        texts = [one["text"] for one in found]
        options = DecodeOptions(max_tokens=3, stop_ids=frozenset())
        assert texts == [pair.generate(one, options).text for one in asked]
    plain = CliRunner().invoke(group, arguments, input="from a pipe\n")
    assert plain.stdout == "\n\n".join(texts) + "\n"
    assert "prompt 5 of 5: six" in plain.stderr


def test_a_first_token_that_ends_the_text_is_named(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle, copy)
    (first,) = run_json(bundle, "--prompt", "for", "--max-tokens", 1)["token_ids"]
    with load(copy) as pair:
        pair.stop_ids = frozenset({first})
        name = pair.token_name(first)
        done = pair.generate([{"role": "user", "content": "for"}])
        assert explanation(pair, done.token_ids, done.finish) == (
            f"nothing came: the first token is {name}, which ends the text; --ignore-eos or "
            "--min-tokens goes on behind it"
        )
        pair.stop_ids = frozenset()
        done = pair.generate([{"role": "user", "content": "for"}], DecodeOptions(max_tokens=1))
        assert explanation(pair, done.token_ids, done.finish) == ""


@pytest.mark.parametrize(
    "words",
    [
        ["--prompt", "caf\udce9"],
        ["--prompt", "a", "--system", "\udce9"],
        ["--prompt", "a", "--stop", "\udce9"],
        ["--prompt", "a", "--template-var", "x=\udce9"],
        ["--prompt", ""],
        ["--prompt", "a", "--raw", "--chat"],
        ["--prompt", "a", "--raw", "--system", "s"],
        ["--prompt", "a", "--template-var", "x"],
        ["--prompt", "a", "--template-var", "x=False"],
        ["--prompt", "a", "--template-var", "x=[1"],
        ["--prompt", "a", "--template-var", "x=1", "--template-var", "x=2"],
        ["--prompt", "a", "--template-var", "messages=[]"],
        ["--prompt", "-", "--prompt", "-"],
        [],
    ],
)
def test_wrong_prompts_are_wrong_usage(words: list[str]) -> None:
    done = run_cli("run", "no-bundle", *words)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) <= 4
    done.stderr.encode()


def test_one_seed_gives_one_text(bundle: Path) -> None:
    arguments = (bundle, "--prompt", "The", "--max-tokens", 30, "--temperature", 0.9, "--seed")
    first, again, other = (run_json(*arguments, seed)["token_ids"] for seed in (4, 4, 5))
    assert first == again != other


def test_a_stop_string_is_not_part_of_the_text(
    bundle: Path, expected: list[dict[str, Any]]
) -> None:
    arguments = (bundle, "--prompt", expected[0]["prompt"], "--max-tokens", 60)
    text = run_json(*arguments)["text"]
    stop = text[30:33]
    found = run_json(*arguments, "--stop", stop)
    assert (found["text"], found["finish"]) == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["--max-tokens", 500],
            1,
            ["1 of 1 prompts do not fit", "500 are wanted", "--max-context"],
        ),
        (["--target", "no/such/folder"], 1, ["config.json: missing", "--target"]),
        (["--top-p", 0], 2, ["--top-p", "0<x<=1"]),
        (["--max-tokens", 0], 2, ["--max-tokens"]),
    ],
    ids=["too long", "no target", "usage", "nothing wanted"],
)
def test_what_cannot_run_says_why(
    bundle: Path, arguments: Sequence[object], code: int, words: list[str]
) -> None:
    done = run_cli("run", bundle, "--prompt", "a", *arguments)
    assert done.exit_code == code
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr


def test_a_drafter_of_another_target_is_refused(bundle: Path, pair: Path, tmp_path: Path) -> None:
    config = json.loads((pair / "tiny-target" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    done = run_cli("run", bundle, "--prompt", "a", "--target", tmp_path)
    assert done.exit_code == 1
    assert "hidden_size is 64, expected 96" in done.stderr
    assert "give the target that was passed to `draftrt export`" in done.stderr


def test_recorded_trajectories_are_replayed_by_exported_graphs(
    pair: Path, bundle: Path, tmp_path: Path
) -> None:
    """Recorded with PyTorch and transformers, replayed on ONNX Runtime; a changed row is found."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The quick brown fox\n1, 2, 3, 4,\nleft out\n")
    path = tmp_path / "expected.json"
    words = ["--prompts", prompts, "--num-prompts", 2, "--max-tokens", 40]
    thresholds = ["--threshold", 0, "--threshold", 0.15]
    draft, target = pair / "tiny-dspark", pair / "tiny-target"
    line = ["validate", "record-trajectories", draft, "--target", target, "-o", path]
    done = run_cli(*line, *words[:4], "--max-tokens", 9000)
    assert done.exit_code == 1
    assert "2 of 2 prompts do not fit, expected larger caches" in done.stderr
    done = run_cli(*line, *words, *thresholds)
    assert done.exit_code == 0, done.output
    rows = read_trajectories(path)
    assert [row.confidence_threshold for row in rows] == [0, 0, 0.15, 0.15]
    assert all(row.is_target_greedy and len(row.output_ids) == 40 for row in rows)
    spec = Bundle.open(bundle).drafter()
    with load(bundle) as opened:
        reports = [replay(n, row, opened, spec.block_size) for n, row in enumerate(rows)]
        assert all(one.is_same for one in reports)
        assert all(one.num_compared == one.num_rounds > 0 for one in reports)
        lengths = (rows[0].acceptance_lengths[0] + 1, *rows[0].acceptance_lengths[1:])
        wrong = replay(0, replace(rows[0], acceptance_lengths=lengths), opened, spec.block_size)
        assert "round 0 accepts" in wrong.problems[0]
    again = run_cli(*line, *words)
    assert again.exit_code == 1
    assert "records are not replaced" in again.stderr


SMALL = ("--cases", 8, "--longest", 24, "--max-tokens", 4)


def test_prompts_behind_other_texts_have_the_ids_of_prompts_computed_whole(bundle: Path) -> None:
    done = run_cli("validate", "reuse", bundle, *SMALL)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[1] == "29 prompts behind other texts: " + lines[1].partition(": ")[2]
    reused, whole = map(int, re.findall(r"(\d+) of (\d+) tokens of prompts", lines[3])[0])
    assert reused > whole / 2
    assert re.fullmatch(r"first drafts the same behind (\d+) of \1 prompts", lines[4])
    assert lines[5:] == ["same: every prompt has the ids that it has when it is computed whole"]


@pytest.mark.parametrize("fault", ["ids", "drafts"])
def test_a_reuse_of_the_wrong_tokens_is_found(
    bundle: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_of(one: Sequence[int], other: Sequence[int]) -> int:
        return min(len(one), len(other))

    calls = iter(range(10**9))

    def all_of_the_drafters(one: Sequence[int], other: Sequence[int]) -> int:
        return all_of(one, other) if next(calls) % 2 else common_length(one, other)

    # Whatever a prompt begins with, it is taken for the text before: by both, or by the drafter.
    wrong = all_of if fault == "ids" else all_of_the_drafters
    monkeypatch.setattr("draftrt.runtime.decoding.reuse.common_length", wrong)
    words = () if fault == "ids" else ("--seed", 1)
    done = run_cli("validate", "reuse", bundle, *SMALL, *words)
    assert done.exit_code == 3, done.output
    assert "DIFFERENT" in done.stdout


SYSTEM = {"role": "system", "content": "Answer as short as you can. " * 4}


def asked(text: str) -> list[dict[str, str]]:
    return [SYSTEM, {"role": "user", "content": text}]


def test_a_saved_prefix_is_not_computed_again(bundle: Path, tmp_path: Path) -> None:
    file, few = tmp_path / "system.prefix", DecodeOptions(max_tokens=24, schedule="all")
    with load(bundle) as pair:
        pair.generate(asked("a song"), DecodeOptions(max_tokens=1))
        count = pair.save_prefix(file)
        cold = pair.generate(asked("a table"), replace(few, reuse_prefix=False))
    assert [one.name for one in tmp_path.iterdir()] == [file.name]
    with load(bundle, prefix=file) as pair:
        warm = pair.generate(asked("a table"), few)
    assert warm.token_ids == cold.token_ids
    assert count > warm.stats.reused_tokens > 50
    assert warm.stats.accepted == cold.stats.accepted  # the drafter's context came back too
    done = run_cli(
        *("run", bundle, "--prompt", "a table", "--system", SYSTEM["content"], "--json"),
        *("--prefix", file, "--save-prefix", tmp_path / "longer.prefix", "--max-tokens", 24),
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["reused_tokens"] == warm.stats.reused_tokens
    assert f"saved: {len(cold.prompt_ids) + 23} tokens in" in done.stderr


def test_a_prefix_of_another_bundle_or_a_damaged_one_is_refused(
    bundle: Path, pair: Path, tmp_path: Path
) -> None:
    file = tmp_path / "system.prefix"
    with load(bundle) as opened:
        with pytest.raises(BundleError, match="no text to save"):
            opened.save_prefix(file)
        opened.generate("a song", DecodeOptions(max_tokens=2))
        opened.save_prefix(file)
    out = tmp_path / "other"
    run_cli("export", "--target", pair / "tiny-target", "-o", out, "--max-context", 160)
    with pytest.raises(BundleError, match="the keys and values of another model"):
        load(out, prefix=file)
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 64
    for content in (whole[: len(whole) // 2], whole[:3], b"", bytes(flipped), b"\x80\x04N."):
        file.write_bytes(content)
        with pytest.raises(BundleError, match="no saved prefix"):
            load(bundle, prefix=file)
    with pytest.raises(BundleError, match="No such file"):
        load(bundle, prefix=tmp_path / "none")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--seed", 3, "--top-k", 2], "--seed, --top-k: no effect at temperature 0"),
        (["--plain", "--schedule", "all"], "--schedule: no effect with --plain"),
        (["--plain", "--temperature", 1, "--proposal", "argmax"], "--proposal: no effect with"),
        (["--temperature", 1, "--seed", 3, "--top-p", 0.5], ""),
        (["--plain"], ""),
    ],
)
def test_options_that_change_nothing_are_told(bundle: Path, words: list[Any], told: str) -> None:
    done = run_cli("run", bundle, "--prompt", "a", "--max-tokens", 2, *words)
    assert done.exit_code == 0, done.output
    warned = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warned) == bool(told)
    assert told in "".join(warned)

"""Comparing systems: who decodes when, what is counted, what is printed and drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from draftrt.manifest import Costs
from draftrt.provenance import Machine, peak_memory_bytes, this_machine
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.stats import Round, Stats
from draftrt.validate.bench.measure import Decoded, Own, Summary, compare
from draftrt.validate.bench.report import BenchReport
from draftrt.validate.bench.section import to_svg

SVG = "{http://www.w3.org/2000/svg}"


class Scripted:
    """A system whose times are given; writes down when it was asked."""

    def __init__(self, name: str, times: Sequence[float], asked: list[str], wrong: int = 0) -> None:
        self.name, self._times, self._asked, self._wrong = name, list(times), asked, wrong

    def decode(self, prompt_ids: tuple[int, ...], max_tokens: int) -> Decoded:
        self._asked.append(f"{self.name}{prompt_ids[0]}")
        ids = [prompt_ids[0] + step for step in range(max_tokens)]
        if self._wrong and len(self._times) == self._wrong:
            ids[-1] += 1
        return Decoded(token_ids=tuple(ids), total_s=self._times.pop(0), first_s=0.25)


def test_systems_take_turns_and_are_compared_prompt_by_prompt() -> None:
    asked: list[str] = []
    plain = Scripted("p", [99, 4.0, 6.0, 8.0, 2.0], asked)
    other = Scripted("s", [99, 2.0, 2.0, 1.0, 4.0], asked, wrong=1)
    first, second = compare([plain, other], [(10,), (20,)], max_tokens=5, repeats=2)
    assert asked[:2] == ["p10", "s10"], "one decoding of each is not measured"
    assert asked[2:] == ["p10", "s10", "s20", "p20", "p10", "s10", "s20", "p20"]
    assert (first.name, first.times_plain, first.num_same) == ("p", 1.0, 4)
    assert first.tokens_per_s == 4 * 5 / 20
    assert second.tokens_per_s == 4 * 5 / 9
    assert second.times_plain == 2.5  # of 2, 3, 8 and 0.5
    assert (second.num_decodings, second.num_same) == (4, 3)
    assert second.first_ms == 250
    assert second.stats is None


def test_a_pair_is_timed_with_its_drafter_and_without(toy: SimpleNamespace) -> None:
    from draftrt.runtime.decoding.drafter import DraftSession
    from draftrt.runtime.decoding.loop import DecodeLoop

    drafter = DraftSession(
        toy.spec(), toy.session(toy.signature(4, 5, 200, confidence=False), (2,))
    )
    decoders = {True: DecodeLoop(toy.target(), drafter), False: DecodeLoop(toy.target())}

    class ToyPair:
        def rounds(
            self, ids: tuple[int, ...], options: DecodeOptions, *, speculate: bool
        ) -> object:
            assert options.stop_ids == frozenset(), "end tokens would make lengths differ"
            return decoders[speculate].decode(ids, options)

    found = [
        Own(ToyPair(), DecodeOptions(schedule="all"), speculate=speculate).decode((3, 1, 4), 20)  # type: ignore[arg-type]
        for speculate in (False, True)
    ]
    assert [one.token_ids for one in found] == [tuple(toy.greedy((3, 1, 4), 20))] * 2
    assert [len(one.rounds) for one in found] == [20, 8]
    for one in found:
        assert one.first_s is not None
        assert 0 < one.first_s < one.total_s


def make_report(**changed: object) -> BenchReport:
    rounds = [
        Round(index=0, token_ids=(1,), verify_s=0.01),
        Round(
            index=1,
            token_ids=(1, 2, 3),
            draft_ids=(1, 2, 4),
            num_verified=3,
            num_accepted=2,
            draft_s=0.001,
            verify_s=0.0025,
            host_s=0.0005,
        ),
    ]

    def system(name: str, tokens_per_s: float, times_plain: float) -> Summary:
        stats = Stats.of(rounds) if name == "speculative" else None
        return Summary(
            name=name,
            tokens_per_s=tokens_per_s,
            first_ms=12.0 if name in ("plain", "speculative") else None,
            times_plain=times_plain,
            num_decodings=6,
            num_same=6,
            stats=stats,
        )

    machine = Machine(processor="Some <processor>", num_cores=2, load=0.5)
    near = {1: 2.0, 2: 2.2, 4: 2.6, 8: 3.0}
    report = BenchReport(
        bundle="bundle",
        pair="dflash, 3 drafts a round; target graph",
        max_tokens=64,
        num_prompts=2,
        form="chat template",
        repeats=3,
        schedule="all",
        versions={"draftrt": "0"},
        before=machine,
        after=replace(machine, load=1.5),
        systems=[
            system("plain", 100.0, 1.0),
            system("speculative", 200.0, 2.0),
            system("rival & co", 50.0, 0.25),
        ],
        costs=[
            Costs(draft_ms=1.0, verify_ms=near, context=256),
            Costs(draft_ms=1.5, verify_ms={k: v + 2 for k, v in near.items()}, context=4256),
        ],
        peak_memory_bytes=123_000_000,
        cache_bytes_per_token={"drafter": 512, "target": 46_080},
    )
    return replace(report, **changed)  # type: ignore[arg-type]


def test_the_report_says_who_was_how_fast_and_where_the_time_went() -> None:
    text = make_report().to_text()
    assert len(text.splitlines()) <= 25
    for words in (
        "Some <processor>, 2 cores, load 0.50 before and 1.50 after",
        "plain        100.0     12.0 ms      1        2.00 x as fast",
        "rival & co   50.0      -            0.25     8.00 x as fast  6 of 6",
        "round     draft 1.00 ms (25.0%), verify 2.50 ms (62.5%), host 0.50 ms (12.5%)",
        "accepted  length 3.00 over 1 rounds; by position 1.00 1.00 0.00",
        "behind 256 tokens: draft 1.00 ms",
        "1: 2.00 (1.00), 2: 2.20 (1.10), 4: 2.60 (1.30), 8: 3.00 (1.50)",
        "ms for every 1,000 tokens more: draft +0.12, verify 1 +0.50, verify 8 +0.50",
        "one row reads their 46.1 MB of K/V at 92.2 GB/s",
        "peak 123 MB; caches, bytes a token: drafter 512, target 46,080",
    ):
        assert words in text
    assert "warning" not in text


def test_a_busy_machine_is_pointed_out() -> None:
    busy = Machine(processor="p", num_cores=2, load=1.9)
    assert "warning   the machine was busy" in make_report(before=busy).to_text()


def test_the_figures_are_plain_json() -> None:
    found = json.loads(json.dumps(make_report(notes=["no rival"]).to_json()))
    assert found["load"] == [0.5, 1.5]
    assert [one["name"] for one in found["systems"]] == ["plain", "speculative", "rival & co"]
    assert found["systems"][1]["stats"]["acceptance_length"] == 3
    assert found["costs"][1]["verify_ms"] == {"1": 4.0, "2": 4.2, "4": 4.6, "8": 5.0}
    assert found["notes"] == ["no rival"]


def test_the_picture_is_well_formed_and_to_scale() -> None:
    root = ElementTree.fromstring(to_svg(make_report().to_json()))
    plots = root.findall(f"{SVG}svg")
    speeds, *_ = plots
    bars = [float(one.get("width", 0)) for one in speeds.iter(f"{SVG}rect")]
    assert bars[1] / bars[0] == pytest.approx(2.0, rel=1e-3)
    assert len(list(root.iter(f"{SVG}polyline"))) == 2
    texts = [one.text for one in root.iter(f"{SVG}text")]
    for words in (
        "Tokens a second",
        "rival & co",
        "A round's time: 4 ms",
        "host  0.5 ms, 12.5%",
        "Drafts kept, by position: 3.00 tokens a round over 1 rounds",
        "behind 4256 cached tokens",
    ):
        assert words in texts
    boxes = [[float(one.get(key, 0)) for key in ("x", "y", "width", "height")] for one in plots]
    _, _, width, height = map(float, str(root.get("viewBox")).split())
    assert len(boxes) == 4
    assert all(x >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)
    for index, (x, y, w, h) in enumerate(boxes):
        for left, top, wide, high in boxes[:index]:
            assert x >= left + wide or left >= x + w or y >= top + high or top >= y + h
    for plot in plots:
        _, _, width, height = map(float, str(plot.get("viewBox")).split())
        for one in plot.iter(f"{SVG}text"):
            assert 0 < float(one.get("x", 0)) < width
            assert 0 < float(one.get("y", 0)) <= height


def test_a_picture_without_drafts_or_costs_shows_the_speeds() -> None:
    found = make_report(costs=[]).to_json()
    found["systems"][1]["stats"] = None
    root = ElementTree.fromstring(to_svg(found))
    assert len(root.findall(f"{SVG}svg")) == 1


@pytest.mark.needs("/proc/self/status")
def test_the_machine_is_named_and_memory_is_counted() -> None:
    machine = this_machine()
    assert machine.processor
    assert machine.num_cores >= 1
    before = peak_memory_bytes()
    assert before is not None
    held = np.ones(20_000_000, np.float64)
    assert held.sum() == 20_000_000
    after = peak_memory_bytes()
    assert after is not None
    assert after >= before
    assert after > 160_000_000

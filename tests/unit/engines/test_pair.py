"""Which graphs get a plan, and what is said to run next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from draftrt.bundle import Bundle
from draftrt.engines.capabilities import Backend
from draftrt.engines.devices import find_device
from draftrt.engines.memory import bundle_memory, check_fits
from draftrt.engines.pair import chosen_graphs, next_lines
from draftrt.errors import BuildError, BundleError
from draftrt.manifest import PlanEntry
from draftrt.spec import Precision

MakeBundle = Callable[..., Path]
RTX = Backend.TENSORRT_RTX


def with_graphs(folder: Path, graphs: tuple[str, ...], plans: tuple[str, ...] = ()) -> Bundle:
    """A bundle whose manifest says that it has these graphs and plans of them."""
    bundle = Bundle.open(folder)
    entry = bundle.graph()
    made = {
        name: PlanEntry(
            file=f"plans/{name}.plan",
            log=f"plans/{name}.log",
            graph=name,
            graph_sha256="",
            backend=RTX.value,
            backend_version="1",
            sms=(89,),
            options={},
            build_seconds=1.0,
            peak_rss_bytes=1,
            size_bytes=1,
        )
        for name in plans
    }
    manifest = replace(bundle.manifest, graphs=dict.fromkeys(graphs, entry), plans=made)
    return replace(bundle, manifest=manifest)


def test_all_graphs_are_those_that_the_bundle_has(make_bundle: MakeBundle) -> None:
    folder = make_bundle(Precision.FP16)
    assert chosen_graphs(with_graphs(folder, ("draft",))) == ("draft",)
    assert chosen_graphs(with_graphs(folder, ("target",))) == ("target",)
    both = with_graphs(folder, ("target", "draft"))
    assert chosen_graphs(both) == ("draft", "target")
    assert chosen_graphs(both, "target") == ("target",)
    with pytest.raises(BundleError, match="no graph 'target'"):
        chosen_graphs(with_graphs(folder, ("draft",)), "target")


@pytest.mark.parametrize(
    ("graphs", "plans", "says", "runs"),
    [
        (
            ("draft", "target"),
            ("draft", "target"),
            "on the device:",
            "run {} --backend tensorrt-rtx",
        ),
        (
            ("draft", "target"),
            ("draft",),
            "the graph of the target has no plan yet:",
            "build {} --backend tensorrt-rtx --graph target --sm 86,89",
        ),
        (
            ("draft", "target"),
            (),
            "the graph of the draft and target has no plan yet:",
            "build {} --backend tensorrt-rtx --graph all --sm 86,89",
        ),
        (
            ("draft",),
            ("draft",),
            "Hugging Face port",
            "run {} --backend tensorrt-rtx --device cuda",
        ),
        (("target",), ("target",), "on the device:", "run {} --backend tensorrt-rtx --prompt"),
    ],
)
def test_what_comes_next_is_one_command(
    graphs: tuple[str, ...],
    plans: tuple[str, ...],
    says: str,
    runs: str,
    make_bundle: MakeBundle,
) -> None:
    bundle = with_graphs(make_bundle(Precision.FP16), graphs, plans)
    first, command = next_lines(bundle, RTX, (86, 89))
    assert says in first
    assert command.startswith(f"  draftrt {runs.format(bundle.path)}")


def test_a_plan_of_another_builder_is_none(make_bundle: MakeBundle) -> None:
    bundle = with_graphs(make_bundle(Precision.FP16), ("draft",), ("draft",))
    assert "has no plan yet" in next_lines(bundle, Backend.TENSORRT)[0]


def test_both_graphs_have_to_fit_the_device_and_the_disk(
    make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = with_graphs(make_bundle(Precision.FP16), ("draft", "target"))
    one = bundle_memory(bundle)["draft"]
    board = find_device("orin-nano-8gb")
    reserved = board.memory_bytes - board.usable_bytes
    small = replace(board, memory_bytes=reserved + 3 * one.device // 2)
    with pytest.raises(BuildError, match="the graphs need"):
        check_fits(bundle, ("draft",), small)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("U", (), {"free": one.plan + 1}))
    check_fits(bundle, ("target",), board)
    with pytest.raises(BuildError, match="draft and target: does not fit: the plans take about"):
        check_fits(bundle, ("draft", "target"), board)

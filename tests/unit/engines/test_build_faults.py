"""Builds that fail, crash, hang or are interrupted, for real, and what they leave behind."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from onnx import TensorProto, helper

from draftrt.bundle import Bundle, write_manifest
from draftrt.bundle_files import read_manifest
from draftrt.engines.build import build_plan
from draftrt.engines.capabilities import Backend
from draftrt.engines.options import BuildOptions
from draftrt.engines.preflight import HEEDED
from draftrt.errors import BuildError, BundleError
from draftrt.spec import Precision
from tests.waiting import is_gone, started, until

pytestmark = pytest.mark.trt

MakeBundle = Callable[..., Path]
RTX86 = BuildOptions(backend=Backend.TENSORRT_RTX, sms=(86,))
LOG = "draft.tensorrt-rtx.sm86.failed.log"


def only_the_log_is_left(folder: Path) -> bool:
    return [path.name for path in (folder / "plans").iterdir()] == [LOG] and not (
        Bundle.open(folder).manifest.plans
    )


def children() -> set[int]:
    """Return the processes started here that are there now; other tests may have left some."""
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


class Graph(Protocol):
    """What a test appends nodes to."""

    def node(self, op: str, inputs: list[str], name: str, **attributes: object) -> str: ...

    def constant(self, name: str, value: object, dtype: str = "int64") -> str: ...


def unsupported(graph: Graph, logits: str) -> str:
    """Add an operator of each kind that the parser refuses."""
    node, constant = graph.node, graph.constant
    node("Cast", [logits], "whole", to=TensorProto.INT32)
    node("BitwiseAnd", ["whole", constant("seven", 7, "int32")], "masked")
    node("Cast", ["masked"], "scores", to=TensorProto.FLOAT)
    node("Multinomial", ["scores"], "drawn", sample_size=1, dtype=TensorProto.INT32)
    node("Cast", ["drawn"], "drawn32", to=TensorProto.FLOAT)
    return node("Add", ["scores", "drawn32"], "sum")


def test_the_preflight_names_every_unsupported_node(make_bundle: MakeBundle) -> None:
    folder = make_bundle(Precision.FP32, unsupported)
    with pytest.raises(BuildError) as caught:
        build_plan(folder, RTX86)
    text = str(caught.value)
    assert "the parser does not take 2 node(s)" in text
    assert "BitwiseAnd at node 'masked_node'" in text
    assert "Multinomial at node 'drawn_node'" in text
    assert str(folder / "plans" / LOG) in text
    assert only_the_log_is_left(folder)


def scored(graph: Graph, logits: str) -> str:
    """Add attention with an attribute that the parser takes and does not heed."""
    heads = graph.node("Unsqueeze", [logits, graph.constant("heads", [0, 1])], "as_heads")
    attended = graph.node(
        "Attention", [heads, heads, heads], "scored", scale=1.0, qk_matmul_output_mode=1
    )
    return graph.node("Squeeze", [attended, graph.constant("headless", [0, 1])], "sum")


def test_an_attribute_that_the_backend_ignores_is_refused(make_bundle: MakeBundle) -> None:
    folder = make_bundle(Precision.FP32, scored)
    with pytest.raises(BuildError, match="would ignore attributes of Attention") as caught:
        build_plan(folder, RTX86)
    assert "qk_matmul_output_mode" in str(caught.value)
    assert only_the_log_is_left(folder)


@pytest.mark.parametrize("name", ["left_window_size", "sliding_window", "qk_matmul_output_mode"])
def test_the_parser_drops_a_window_without_a_word(name: str) -> None:
    """Once this fails the parser has learned it, and `HEEDED` may have the attribute."""
    trt = pytest.importorskip("tensorrt_rtx")
    plain, windowed = (parsed_attention(trt, given) for given in ({}, {name: 2}))
    assert windowed == plain
    assert name not in HEEDED["Attention"]


def parsed_attention(trt: Any, attributes: dict[str, int]) -> list[tuple[str, str]]:
    """Return the layers that the parser makes of attention; it must take the graph."""
    node = helper.make_node("Attention", [*"qkv"], ["out"], "it", scale=1.0)
    node.attribute.extend(helper.make_attribute(*one) for one in attributes.items())
    shape = [1, 2, 8, 16]
    values = [helper.make_tensor_value_info(one, TensorProto.FLOAT, shape) for one in [*"qkv"]]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "attention", values, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    logger = trt.Logger(trt.Logger.ERROR)
    flag = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    builder = trt.Builder(logger)
    network = builder.create_network(flag)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(model.SerializeToString())
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    return [(str(layer.type), layer.name) for layer in layers]


def shaped_by_a_value(graph: Graph, logits: str) -> str:
    """Add a tensor whose size is the value of an input."""
    node, constant = graph.node, graph.constant
    node("ConstantOfShape", ["context_length"], "zeros")
    node("ReduceSum", ["zeros", "axis0"], "zero", keepdims=1)
    return node("Add", [logits, node("Unsqueeze", ["zero", constant("front", [0])], "bias")], "sum")


def test_an_input_whose_value_sets_a_shape_is_refused(make_bundle: MakeBundle) -> None:
    folder = make_bundle(Precision.FP32, shaped_by_a_value)
    with pytest.raises(BuildError, match="values of input 'context_length' set the shape"):
        build_plan(folder, RTX86)
    assert only_the_log_is_left(folder)


def test_inputs_that_the_signature_does_not_describe_are_named(make_bundle: MakeBundle) -> None:
    folder = make_bundle()
    manifest = read_manifest(folder)
    entry = manifest.graphs["draft"]
    inputs = tuple(
        replace(one, name="features") if one.name == "target_hidden" else one
        for one in entry.signature.inputs
    )
    renamed = replace(entry, signature=replace(entry.signature, inputs=inputs))
    write_manifest(folder, replace(manifest, graphs={"draft": renamed}))
    with pytest.raises(BuildError) as caught:
        build_plan(folder, RTX86)
    assert "input 'target_hidden' is not in the signature" in str(caught.value)
    assert "input 'features' is not in the graph" in str(caught.value)


def test_arithmetic_that_an_sm_lacks_is_named_with_its_layer(
    make_bundle: MakeBundle, dequantized_bundle: Callable[[int, int], Path], tmp_path: Path
) -> None:
    folder = dequantized_bundle(TensorProto.FLOAT8E4M3FN, 1)
    with pytest.raises(BuildError, match=r"layer '.*' needs float8: got SM86.*from SM89 on"):
        build_plan(folder, RTX86)
    assert only_the_log_is_left(folder)
    folder.rename(tmp_path / "float8")
    turing = BuildOptions(backend=Backend.TENSORRT_RTX, sms=(75, 86))
    with pytest.raises(BuildError, match=r"'fused_node' needs float32 matrix product: got SM75"):
        build_plan(make_bundle(Precision.FP16), turing)


def test_a_crash_of_the_builder_becomes_an_error_with_its_log(
    dequantized_bundle: Callable[[int, int], Path],
) -> None:
    folder = dequantized_bundle(TensorProto.INT4, 2)
    with pytest.raises(BuildError) as caught:
        build_plan(folder, RTX86)
    text = str(caught.value)
    assert "the build process was ended by SIGSEGV" in text
    assert "Fatal Python error: Segmentation fault" in text
    assert only_the_log_is_left(folder)


# The build process imports this first. It stops where a function is entered, and says so.
HOLD = """
import pathlib, signal, sys

def stop_at(frame, event, argument):
    if event == "call" and frame.f_code.co_name == {function!r}:
        if frame.f_code.co_filename.endswith("engines/worker.py"):
            sys.setprofile(None)
            pathlib.Path({held!r}).touch()
            while True:
                signal.pause()

sys.setprofile(stop_at)
"""
Hold = Callable[[str], Path]


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    """Let the build processes started from now on stop in a function of the worker for good.

    Returns:
        Called with the function's name: the file that is there once a process has stopped.
    """

    def at(function: str) -> Path:
        held = tmp_path / "hold" / "held"
        held.parent.mkdir()
        code = HOLD.format(function=function, held=str(held))
        (held.parent / "sitecustomize.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(held.parent), prepend=os.pathsep)
        return held

    return at


def test_a_build_that_takes_too_long_is_stopped(make_bundle: MakeBundle, hold: Hold) -> None:
    folder = make_bundle()
    options = BuildOptions(backend=Backend.TENSORRT_RTX, sms=(86,), timeout_s=0.3)
    before = children()
    hold("build")
    with pytest.raises(BuildError, match=r"stopped at the time limit(.|\n)*--timeout"):
        build_plan(folder, options)
    assert only_the_log_is_left(folder)
    assert children() <= before


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGKILL, r"ended by SIGKILL(.|\n)*may have run out of memory"),
        (signal.SIGINT, "ended by SIGINT"),
    ],
)
@pytest.mark.parametrize("where", ["build", "write_plan"])  # before the builder's import, after it
def test_a_killed_build_becomes_an_error(
    make_bundle: MakeBundle, hold: Hold, number: signal.Signals, text: str, where: str
) -> None:
    folder, before, held = make_bundle(), children(), hold(where)

    def kill(seconds: float) -> None:
        if held.exists():
            for pid in children() - before:
                os.kill(pid, number)

    with pytest.raises(BuildError, match=text):
        build_plan(folder, RTX86, on_tick=kill)
    assert only_the_log_is_left(folder)


def test_a_failed_rebuild_keeps_the_plan_that_was_there(
    make_bundle: MakeBundle, hold: Hold
) -> None:
    folder = make_bundle()
    entry = build_plan(folder, RTX86).entry
    plan, log = (folder / name for name in (entry.file, entry.log))
    before = plan.read_bytes(), log.read_text()
    held = hold("build")
    with pytest.raises(BuildError):
        build_plan(
            folder,
            BuildOptions(backend=Backend.TENSORRT_RTX, sms=(86,), timeout_s=0.1),
            force=True,
        )
    assert (plan.read_bytes(), log.read_text()) == before
    assert Bundle.open(folder).manifest.plans == {entry.file: entry}
    (held.parent / "sitecustomize.py").unlink()
    build_plan(folder, RTX86, force=True)
    assert not (folder / "plans" / LOG).exists()


def test_a_plan_that_cannot_be_recorded_takes_no_place(make_bundle: MakeBundle) -> None:
    folder = make_bundle()
    entry = build_plan(folder, RTX86).entry
    manifest, before = folder / "manifest.json", (folder / entry.file).read_bytes()
    text = manifest.read_text()
    with pytest.raises(BundleError, match=r"no manifest\.json there"):
        build_plan(folder, RTX86, force=True, on_tick=lambda _: manifest.unlink(missing_ok=True))
    manifest.write_text(text)
    assert (folder / entry.file).read_bytes() == before
    assert Bundle.open(folder).manifest.plans == {entry.file: entry}


def test_a_full_disk_becomes_an_error(make_bundle: MakeBundle) -> None:
    folder = make_bundle()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))  # as if the disk ended there
    try:
        with pytest.raises(BuildError, match=r"plan: cannot be written: no room"):
            build_plan(folder, RTX86)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert only_the_log_is_left(folder)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGKILL, -9),
    ],
)
def test_an_interrupted_command_ends_its_child_and_leaves_only_the_log(
    make_bundle: MakeBundle, hold: Hold, root: Path, number: signal.Signals, status: int
) -> None:
    folder, held = make_bundle(), hold("build")
    command = [sys.executable, "-m", "draftrt", "build", str(folder), "--sm", "86"]
    with started(command, cwd=root) as process:
        until(held.exists, process=process)
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(number)
        _, error = process.communicate()
    assert process.returncode == status
    assert "Traceback" not in error
    assert len(workers) == 1
    until(lambda: is_gone(int(workers[0])))
    assert not list(folder.glob("plans/.*partial-*/reply.json"))  # it did not get to its end
    assert not list(folder.glob("plans/*.plan"))
    if number is not signal.SIGKILL:  # nothing can clean up after that one
        assert only_the_log_is_left(folder)

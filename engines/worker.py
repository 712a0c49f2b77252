"""The build process: ``python -m draftrt.engines.worker REQUEST.json REPLY.json PARENT_PID``.

A graph can crash the builder, so nothing else happens in this process and nothing is kept in it.
What it prints is the build log.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from draftrt.engines import preflight, process
from draftrt.engines.capabilities import FACTS, Backend, feature_findings
from draftrt.engines.process import BuildReply, BuildRequest
from draftrt.errors import BuildError, DraftrtError, collect
from draftrt.files import NO_ROOM

# Head dimensions that TensorRT-RTX 1.7 has fused 16-bit attention kernels for. It has none for
# float32: such layers build only when they may be split into separate operations.
FUSED_HEAD_DIMS = range(16, 257)

_PR_SET_PDEATHSIG = 1


def main(request_file: str, reply_file: str, parent: str) -> None:
    """Build what the request says and write the reply."""
    # Python's own handling would raise inside the builder's import and end as an ImportError there.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _die_with(int(parent))
    request = process.read(BuildRequest, Path(request_file))
    try:
        process.write(Path(reply_file), build(request))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        sys.exit(process.NO_ROOM_STATUS)


def build(request: BuildRequest) -> BuildReply:
    """Build one plan in this process.

    Returns:
        The reply; its ``problem`` is set when there is no plan.
    """
    if request.backend is Backend.TENSORRT_RTX:
        os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"  # read when polygraphy is imported
    trt = importlib.import_module(request.backend.module)
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    G_LOGGER.colors = False
    G_LOGGER.info(f"{request.backend.value} {trt.__version__}, {request.onnx}")
    if not FACTS[request.backend].needs_gpu:
        G_LOGGER.info("Lines with cudaError 35 say that there is no NVIDIA driver: none is needed")
    attention = AttentionHook(trt)
    problem = hint = ""
    try:
        _parse_and_build(trt, request, attention)
    except DraftrtError as error:
        problem, hint = error.message, error.hint
    except PolygraphyException as error:
        problem = str(error)
    return BuildReply(
        peak_rss_bytes=peak_rss_bytes(),
        problem=problem,
        hint=hint,
        num_attentions=attention.num_layers,
        num_decomposed=attention.num_decomposed,
    )


def _parse_and_build(trt: ModuleType, request: BuildRequest, attention: AttentionHook) -> None:
    from polygraphy.backend.trt import NetworkFromOnnxPath, PostprocessNetwork
    from polygraphy.backend.trt.util import get_trt_logger, str_from_config
    from polygraphy.logger import G_LOGGER

    preflight.check_attributes(Path(request.onnx))
    preflight.check_nodes(trt, get_trt_logger(), Path(request.onnx))
    parsed = NetworkFromOnnxPath(request.onnx, strongly_typed=True)
    # The parser owns the weights: it has to stay until the plan is written.
    builder, network, parser = PostprocessNetwork(parsed, func=attention.mark)()
    preflight.check_inputs(network, request.shapes)
    used = preflight.features_in_use(trt, network)
    collect(feature_findings(request.backend, request.sms, used, request.device))
    config = make_config(trt, request)(builder, network)
    # float32 in a graph is there for its precision; TF32 would round its products to ten bits.
    config.clear_flag(trt.BuilderFlag.TF32)
    if request.strip:
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)
        config.set_flag(trt.BuilderFlag.REFIT_IDENTICAL)
    G_LOGGER.info(f"Configuration:\n{str_from_config(config, network)}")
    write_plan(trt, builder, network, config, Path(request.plan))
    del parser
    G_LOGGER.info(f"Plan of {Path(request.plan).stat().st_size} bytes written")


class AttentionHook:
    """Allows attention layers without a fused kernel to be split into separate operations.

    Attributes:
        num_layers: attention layers seen.
        num_decomposed: those that were marked.
    """

    def __init__(self, trt: ModuleType) -> None:
        self._trt = trt
        self.num_layers = 0
        self.num_decomposed = 0

    def mark(self, network: Any) -> None:
        """Mark the layers of a network; older TensorRT has none to mark."""
        kind = getattr(self._trt.LayerType, "ATTENTION_INPUT", None)
        if kind is None:
            return
        for index in range(network.num_layers):
            layer = network.get_layer(index)
            if layer.type != kind:
                continue
            self.num_layers += 1
            query = layer.get_input(0)
            if query.dtype == self._trt.DataType.FLOAT or query.shape[-1] not in FUSED_HEAD_DIMS:
                layer.__class__ = self._trt.IAttentionInputLayer  # the binding returns the base
                layer.attention.decomposable = True
                self.num_decomposed += 1


def make_config(trt: ModuleType, request: BuildRequest) -> Any:
    """Return Polygraphy's config loader for the request."""
    from polygraphy.backend.trt import CreateConfig, Profile

    profile = Profile()
    for name, shape in request.shapes.items():
        profile.add(name, shape.min, shape.opt, shape.max)
    pools = None
    if request.workspace_bytes is not None:
        pools = {trt.MemoryPoolType.WORKSPACE: request.workspace_bytes}
    if request.backend is Backend.TENSORRT:
        return CreateConfig(profiles=[profile], memory_pool_limits=pools)
    from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

    return CreateConfigRTX(
        compute_capabilities=[divmod(sm, 10) for sm in request.sms],
        profiles=[profile],
        memory_pool_limits=pools,
    )


def write_plan(trt: ModuleType, builder: Any, network: Any, config: Any, path: Path) -> None:
    """Build and write the plan, streamed where the module can: that saves a copy of the weights.

    Raises:
        BuildError: the builder gave up; its log says why.
        OSError: the disk did.
    """
    is_streamed = hasattr(builder, "build_serialized_network_to_stream")
    with path.open("wb") as stream:
        if is_streamed:
            writer = _stream_writer(trt, stream)
            done = builder.build_serialized_network_to_stream(network, config, writer)
            if writer.failure is not None:
                raise writer.failure
        else:
            plan = builder.build_serialized_network(network, config)
            done = plan is not None
            stream.write(plan or b"")
    if not done:
        raise BuildError("the builder refused the graph")


def _stream_writer(trt: ModuleType, stream: BinaryIO) -> Any:
    class Writer(trt.IStreamWriter):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)
            self.failure: OSError | None = None

        def write(self, data: bytes) -> int:
            try:
                stream.write(data)
            except OSError as error:  # must not unwind through the builder
                self.failure = error
                return 0
            return len(data)

    return Writer()


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process.

    Not from `getrusage`, whose peak survives exec and so starts at that of the parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, so that no build is left behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit("the process that asked for this build is gone")


if __name__ == "__main__":
    main(*sys.argv[1:])

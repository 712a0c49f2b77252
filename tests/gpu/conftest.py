"""Bundles with plans for the GPU that is here, built once a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftrt.bundle import Bundle, hash_files, write_manifest
from draftrt.engines.build import build_plan
from draftrt.engines.capabilities import FACTS, Backend
from draftrt.engines.options import BuildOptions
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.export.write_graphs import write_draft_graph
from draftrt.manifest import Manifest
from draftrt.runtime.backends.cuda import Cuda
from draftrt.validate.records.cases import GoldenCase, read_case
from draftrt.validate.records.golden import case_target

CONTEXT = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU and the backend that builds for it."""

    sm: int
    backend: Backend

    def build(self, bundle: Path, graph: str = "draft") -> Bundle:
        """Build a plan of a graph for this GPU; return the bundle with it."""
        options = BuildOptions(backend=self.backend, sms=(self.sm,), graph=graph)
        return build_plan(bundle, options).bundle


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """TensorRT-RTX where it builds for the GPU, else classic TensorRT."""
    pytest.importorskip("cuda.bindings.runtime")
    device = Cuda()
    sm = device.sm
    device.close()
    for backend, facts in FACTS.items():
        if sm in facts.sms and importlib.util.find_spec(backend.module) is not None:
            return Gpu(sm, backend)
    pytest.skip(f"no installed TensorRT builds for SM{sm}")


@pytest.fixture(scope="session")
def pair_bundle(
    assets: Path, tmp_path_factory: pytest.TempPathFactory, gpu: Gpu
) -> Callable[..., Path]:
    """Export a pair that ships and build plans of both graphs: `pair_bundle("tiny-dspark")`."""
    made: dict[tuple[str, ExportOptions], Path] = {}

    def make(name: str, options: ExportOptions | None = None) -> Path:
        options = options or ExportOptions(max_context=CONTEXT)
        key = (name, options)
        if key not in made:
            folder = tmp_path_factory.mktemp("pair") / "bundle"
            export_bundle(assets / name, assets / "tiny-target", folder, options)
            for graph in ("draft", "target"):
                gpu.build(folder, graph)
            made[key] = folder
        return made[key]

    return make


@pytest.fixture
def case_bundle(
    root: Path, tmp_path: Path, gpu: Gpu
) -> Callable[[str, ExportOptions], tuple[GoldenCase, Bundle]]:
    """Export the drafter of a golden case and build its plan; there is no target to it."""

    def make(name: str, options: ExportOptions) -> tuple[GoldenCase, Bundle]:
        case = read_case(root / "tests" / "golden" / name)
        target = case_target(case)
        loaded = load_drafter(case.draft, target)
        folder = tmp_path / name
        folder.mkdir()
        entry = write_draft_graph(loaded, folder, options, lambda line: None)
        manifest = Manifest(
            drafter=loaded.spec,
            target=target.spec,
            graphs={"draft": entry},
            files=hash_files(folder),
            inputs={},
            tools={},
            command="",
            created="",
        )
        write_manifest(folder, manifest)
        return case, gpu.build(folder)

    return make

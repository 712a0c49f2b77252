"""Build one plan of a bundle in a process of its own and record it in the manifest.

Knows files, processes and the manifest; TensorRT is touched in `draftrt.engines.worker` alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import draftrt
from draftrt.bundle import ELSEWHERE, Bundle, add_plan
from draftrt.bundle_files import Verify
from draftrt.engines import process
from draftrt.engines.capabilities import FACTS, request_findings
from draftrt.engines.environment import backend_version, find_gpus, target_sms
from draftrt.engines.options import BuildOptions, narrow, shape_ranges
from draftrt.engines.process import BuildReply, BuildRequest
from draftrt.errors import BackendError, BuildError, UnsupportedError, collect
from draftrt.files import ROOM, cannot_write, naming, scratch_folder, sha256_of
from draftrt.manifest import GraphEntry, PlanEntry

PLANS = "plans"
TAIL_LINES = 12
TAIL_WIDTH = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """A plan that is in the bundle.

    Attributes:
        bundle: the bundle, re-read.
        entry: the plan's record.
        is_cached: whether it was there already, built from the same graph with the same options.
        reply: what the build process said; None when nothing was built.
    """

    bundle: Bundle
    entry: PlanEntry
    is_cached: bool
    reply: BuildReply | None


def build_plan(
    bundle: Path | str,
    options: BuildOptions,
    *,
    force: bool = False,
    on_tick: Callable[[float], None] = lambda _: None,
    check: Callable[[Bundle], None] | None = None,
) -> BuildResult:
    """Build a plan, or return the one that the same graph, options and backend version gave before.

    A plan and its log take their final names at the end; a failed or interrupted build leaves
    ``plans/<name>.failed.log`` and the older plan, if there is one. No plan is loaded or run here.

    Args:
        bundle: the bundle's folder.
        options: what to build.
        force: build even when the plan is there.
        on_tick: called a few times a second with the seconds since the build began.
        check: called before anything is built; what it raises ends the work.

    Raises:
        BundleError: no such graph, or the bundle is damaged or cannot be written.
        UnsupportedError: an SM cannot be built for, or lacks the graph's arithmetic.
        BackendError: the package is missing, or classic TensorRT has no GPU to build on.
        BuildError: TensorRT refused the graph, crashed, or took too long; holds its log's tail.
    """
    opened = Bundle.open(bundle, verify=Verify.ALL, needs_plans=False)
    graph = opened.graph(options.graph)
    options, version = _resolve(graph, options)
    shapes = shape_ranges(graph.signature, narrow(graph.signature, options.dimensions))
    expected = _unbuilt_entry(opened, graph, options, version)
    present = opened.manifest.plans.get(expected.file)
    if present is not None and not force and _is_same_build(present, expected):
        return BuildResult(bundle=opened, entry=present, is_cached=True, reply=None)
    if check is not None:
        check(opened)
    request = BuildRequest(
        backend=options.backend,
        sms=options.sms,
        onnx=str(opened.file(graph.file).absolute()),  # links to its data lie beside it
        plan="",
        shapes=shapes,
        workspace_bytes=options.workspace_bytes,
        strip=options.strip,
        device=options.device,
    )
    return _build(opened, expected, request, options.timeout_s, on_tick)


def _unbuilt_entry(
    bundle: Bundle, graph: GraphEntry, options: BuildOptions, version: str
) -> PlanEntry:
    """Return the plan's record with what is known before it is built."""
    stem = f"{PLANS}/{options.stem()}"
    return PlanEntry(
        file=f"{stem}.plan",
        log=f"{stem}.log",
        graph=options.graph,
        graph_sha256=bundle.manifest.files[graph.file].sha256,
        backend=options.backend.value,
        backend_version=version,
        sms=options.sms,
        options={"weights_sha256": bundle.weights_sha256(graph), **options.as_text()},
        build_seconds=0.0,
        peak_rss_bytes=0,
        size_bytes=0,
    )


def _resolve(graph: GraphEntry, options: BuildOptions) -> tuple[BuildOptions, str]:
    """Return the options with their SMs settled and the backend's version, or refuse."""
    backend = options.backend
    _check_sms(graph, options)
    version = backend_version(backend)
    gpus = find_gpus() if FACTS[backend].needs_gpu or options.strip else None
    if options.strip and gpus is not None and not gpus.sms:
        raise BackendError(
            f"--strip: a plan without weights is built with a GPU at hand, and there is none: "
            f"{gpus.missing}",
            hint="leave --strip out here: for a plan that is to be refitted, the builder loads "
            "kernels and takes device memory",
        )
    options = replace(options, sms=target_sms(backend, options.sms, gpus))
    _check_sms(graph, options)
    return options, version


def _check_sms(graph: GraphEntry, options: BuildOptions) -> None:
    findings = request_findings(
        options.backend, options.sms, graph.precision, graph.schemes(), options.device
    )
    others = [sm for sm in options.sms if graph.sms and sm not in graph.sms]
    if others and not findings:
        own, wished = (",".join(map(str, sms)) for sms in (graph.sms, options.sms))
        names = " and ".join(f"SM{sm}" for sm in others)
        findings.append(
            UnsupportedError(
                f"{names}: the {options.graph} graph was exported for --sm {own} alone",
                hint=f"build for those, or export again with --sm {wished} or without",
            )
        )
    collect(findings)


def _is_same_build(present: PlanEntry, expected: PlanEntry) -> bool:
    measured = replace(
        expected,
        build_seconds=present.build_seconds,
        peak_rss_bytes=present.peak_rss_bytes,
        size_bytes=present.size_bytes,
        sha256=present.sha256,
        log_sha256=present.log_sha256,
    )
    return present == measured


def _build(
    bundle: Bundle,
    expected: PlanEntry,
    request: BuildRequest,
    timeout_s: float,
    on_tick: Callable[[float], None],
) -> BuildResult:
    with process.terminable(), _scratch(bundle, expected.file) as scratch:
        log, plan, reply_file = scratch / "log", scratch / "plan", scratch / "reply.json"
        failed_log = bundle.file(expected.log).with_suffix(".failed.log")
        try:
            process.write(scratch / "request.json", replace(request, plan=str(plan)))
            ending = _run_worker(scratch, log, timeout_s, on_tick)
            reply = None if ending.status else process.read(BuildReply, reply_file)
            if reply is None or reply.problem:
                raise _failure(expected, ending, reply, log, failed_log)
            entry = replace(
                expected,
                build_seconds=round(ending.seconds, 2),
                peak_rss_bytes=reply.peak_rss_bytes,
                size_bytes=plan.stat().st_size,
                sha256=sha256_of(plan),
                log_sha256=sha256_of(log),
            )
            with process.uninterrupted(), _locked(bundle.path):
                bundle = _record(bundle, entry, plan, log)
                failed_log.unlink(missing_ok=True)
        except BaseException:
            if log.exists():
                log.replace(failed_log)
            raise
    return BuildResult(bundle=bundle, entry=entry, is_cached=False, reply=reply)


def _record(bundle: Bundle, entry: PlanEntry, plan: Path, log: Path) -> Bundle:
    """Put the plan and its log in their places and into the manifest: all or nothing."""
    moves = [(plan, bundle.file(entry.file)), (log, bundle.file(entry.log))]
    done: list[tuple[Path, Path]] = []
    try:
        for source, final in moves:
            if final.exists():
                final.replace(source.with_name(f"previous {source.name}"))
            done.append((source, final))
            shutil.copyfile(source, final) if source is log else source.replace(final)
        return add_plan(bundle, entry)
    except BaseException:
        for source, final in done:
            final.unlink(missing_ok=True)
            previous = source.with_name(f"previous {source.name}")
            if previous.exists():
                previous.replace(final)
        raise


def _run_worker(
    scratch: Path, log: Path, timeout_s: float, on_tick: Callable[[float], None]
) -> process.ChildEnding:
    # The package may have been found through the working folder, which the child does not share.
    root = str(Path(draftrt.__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return process.run(
        [
            *(sys.executable, "-u", "-X", "faulthandler", "-m", "draftrt.engines.worker"),
            *(str(scratch / "request.json"), str(scratch / "reply.json"), str(os.getpid())),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=scratch,
        log=log,
        timeout_s=timeout_s,
        on_tick=on_tick,
    )


def _failure(
    expected: PlanEntry,
    ending: process.ChildEnding,
    reply: BuildReply | None,
    log: Path,
    failed_log: Path,
) -> BuildError:
    what = f"{expected.backend} {expected.backend_version}, graph {expected.graph!r}"
    hint = f"the whole log is {failed_log}"
    if reply is None:
        problem = f"the build process {ending.describe()}"
        if ending.timed_out:
            hint = f"pass a larger --timeout; {hint}"
        elif ending.status == -signal.SIGKILL:
            hint = f"the machine may have run out of memory; {hint}"
        elif ending.status == process.NO_ROOM_STATUS:
            problem = (
                f"{failed_log.with_name(Path(expected.file).name)}: cannot be written: no room"
            )
            return BuildError(f"{what}: {problem}", hint=f"{ROOM}; {hint}")
    elif reply.hint:
        return BuildError(f"{what}: {reply.problem}", hint=f"{reply.hint}; {hint}")
    else:
        problem = reply.problem
    return BuildError(f"{what}: {problem}\n{log_tail(log)}", hint=hint)


def log_tail(log: Path) -> str:
    """Return the last lines of a build log, indented, without its noise about a missing driver."""
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip() and "cudaError 35" not in line
    ]
    return "\n".join(f"    | {line[:TAIL_WIDTH]}" for line in lines[-TAIL_LINES:])


@contextmanager
def _scratch(bundle: Bundle, file: str) -> Iterator[Path]:
    """Give a folder beside the plan's final place that is gone at the end, whatever happens."""
    final = bundle.file(file)
    with ExitStack() as stack:
        try:
            final.parent.mkdir(exist_ok=True)
            stack.callback(_remove_empty, final.parent)
            scratch = stack.enter_context(scratch_folder(final.with_suffix("")))
        except OSError as error:
            raise cannot_write(final.parent, error, hint=ELSEWHERE) from error
        with naming(final):
            yield scratch.resolve()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # there are other plans, or a log
        folder.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other builds of the same bundle from changing its manifest meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

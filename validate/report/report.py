"""What a report of a bundle says: the same sections for HTML and Markdown, the same data as JSON.

Each part comes from the bundle's manifest, from a parity check, or from the JSON that ``draftrt
bench`` wrote, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftrt.bundle import Bundle
from draftrt.bundle_files import MANIFEST, Verify
from draftrt.codec import to_json
from draftrt.errors import BundleError
from draftrt.files import sha256_of
from draftrt.provenance import command_line, now, tool_versions
from draftrt.runtime.prompts import Form
from draftrt.validate.bench.run import BenchSettings, run_bench
from draftrt.validate.records.files import read_json

HERE = "made for this report"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleReport:
    """Everything a report is made from.

    Attributes:
        bundle: the bundle, its hashes verified.
        parity: data of a parity check, as ``draftrt validate parity --json`` prints it; None
            without one.
        bench: data of a bench, as ``draftrt bench --json`` writes it; None without one.
        doctor: data of the acceptance doctor, as ``draftrt doctor acceptance --json`` prints it;
            None without it.
        sources: where these three come from, in words.
        command: command line that made the report.
        created: UTC time.
        tools: package to version, of the machine that made the report.
    """

    bundle: Bundle
    parity: Mapping[str, Any] | None
    bench: Mapping[str, Any] | None
    doctor: Mapping[str, Any] | None
    sources: Mapping[str, str]
    command: str
    created: str
    tools: Mapping[str, str]

    @property
    def name(self) -> str:
        """Name of the bundle's folder."""
        return self.bundle.path.resolve().name

    @property
    def verdict(self) -> str:
        """``same``, ``different`` or ``not checked``."""
        if self.parity is None:
            return "not checked"
        return "same" if self.parity["same"] else "different"

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "format": "draftrt-report",
            "version": 1,
            "bundle": self.name,
            "verdict": self.verdict,
            "parity": self.parity,
            "bench": self.bench,
            "doctor": self.doctor,
            "sources": dict(self.sources),
            "manifest": to_json(self.bundle.manifest),
            "manifest_sha256": sha256_of(self.bundle.path / MANIFEST),
            "command": self.command,
            "created": self.created,
            "tools": dict(self.tools),
        }


def make_report(
    path: Path,
    *,
    parity: Path | None = None,
    bench: Path | None = None,
    doctor: Path | None = None,
    with_parity: bool = True,
    with_bench: bool = False,
    prompts: Path | None = None,
    form: Form | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> BundleReport:
    """Collect what there is to say about a bundle.

    Args:
        path: the bundle.
        parity: JSON of a parity check that was made already; None: it is made now.
        bench: JSON of a bench that was made already.
        doctor: JSON of the acceptance doctor; None: the report does without.
        with_parity: whether a parity check that was not made already is made.
        with_bench: whether a bench that was not made already is made, a short one; without any the
            report has no acceptance and no times.
        prompts: file of prompts for that bench; None: built-in ones.
        form: how they are written out for the target; None: through the chat template where its
            tokenizer has one.
        report: gets one line a step.

    Raises:
        BundleError: no bundle there, its files changed, or a JSON file is of another bundle.
        RecordError: a JSON file cannot be read.
        BackendError: a package for the parity check or the bench is missing.
        FeedError: the caches are too short for the bench.
    """
    bundle = Bundle.open(path, verify=Verify.ALL)
    found, parity_source = _parity(bundle, parity, report if with_parity else None)
    short = BenchSettings(
        schedule="all",  # what the drafter is worth, not what is made of it
        bundle=bundle.path,
        prompts=prompts,
        form=form or Form(),
        num_prompts=4,
        max_tokens=64,
        repeats=1,
    )
    timed, bench_source = _bench(bundle, bench, short, report if with_bench else None)
    examined = None if doctor is None else _read(doctor, bundle, DOCTOR_KEYS)
    doctor_source = "" if doctor is None else f"{doctor.name}, by draftrt doctor acceptance --json"
    return BundleReport(
        bundle=bundle,
        parity=found,
        bench=timed,
        doctor=examined,
        sources={"parity": parity_source, "bench": bench_source, "doctor": doctor_source},
        command=command_line(),
        created=now(),
        tools=tool_versions(),
    )


def _parity(
    bundle: Bundle, given: Path | None, report: Callable[[str], None] | None
) -> tuple[Mapping[str, Any] | None, str]:
    """Return a parity check and where it is from; without ``report`` none is made."""
    if given is not None:
        keys = ("same", "rounds", "measures", "limits")
        return _read(given, bundle, keys), f"{given.name}, by draftrt validate parity --json"
    if report is None:
        return None, ""
    from draftrt.validate.parity.pair import as_json, check_pair

    report("parity ...")
    return as_json(check_pair(bundle.path)), HERE


def _bench(
    bundle: Bundle, given: Path | None, short: BenchSettings, report: Callable[[str], None] | None
) -> tuple[Mapping[str, Any] | None, str]:
    """Return a bench and where it is from; without ``report`` none is made."""
    if given is not None:
        keys = ("systems", "costs", "processor")
        return _read(given, bundle, keys), f"{given.name}, by draftrt bench --json"
    if report is None:
        return None, ""
    report("bench ...")
    return run_bench(short, report).to_json(), HERE


def _read(path: Path, bundle: Bundle, keys: tuple[str, ...]) -> Mapping[str, Any]:
    data = read_json(path)
    missing = [key for key in ("bundle", *keys) if not isinstance(data, dict) or key not in data]
    if missing:
        raise BundleError(
            f"{path}: got JSON without {', '.join(missing)}, expected what `draftrt validate "
            "parity`, `draftrt bench` or `draftrt doctor acceptance` write with --json",
        )
    name, expected = Path(str(data["bundle"])).name, bundle.path.resolve().name
    if name != expected:
        raise BundleError(
            f"{path}: is about bundle {name}, expected {expected}",
            hint="measure this bundle, or report on that one",
        )
    found: Mapping[str, Any] = data
    return found


DOCTOR_KEYS = ("verdicts", "acceptance_length", "by_position", "by_context", "suspects", "forms")

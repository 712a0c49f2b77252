"""`draftrt report`: one page that says what was found, shows what it says, and loads nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from draftrt.bundle_files import read_manifest
from draftrt.cli import group
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.manifest import Costs
from draftrt.provenance import Machine
from draftrt.runtime.decoding.stats import Stats
from draftrt.validate.bench.measure import Summary
from draftrt.validate.bench.plots import BOTTOM, HEIGHT, TOP, WIDTH, bars, lines, split
from draftrt.validate.bench.report import BenchReport
from draftrt.validate.report.render import plain
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter, write_target

pytest.importorskip("onnxruntime")
pytest.importorskip("polygraphy")
NASTY = 'a<b>&"c'
VOID = {"meta", "rect", "line", "circle", "polyline"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    draft = write_drafter(
        folder / "draft", ToyDrafter(kind=Kind.SPECULATORS_DSPARK, draft_vocab_size=96)
    )
    options = ExportOptions(max_context=64, target_graph=False)
    return export_bundle(draft, write_target(folder / "target"), folder / NASTY, options)


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy whose name would break a page that does not escape it."""
    return shutil.copytree(made, tmp_path / NASTY)


def summary(name: str, stats: Stats | None, speed: float) -> Summary:
    return Summary(
        name=name,
        tokens_per_s=100 * speed,
        first_ms=12.5,
        times_plain=speed,
        num_decodings=4,
        num_same=4,
        stats=stats,
    )


def write_bench(bundle: Path | str, path: Path) -> Path:
    stats = Stats(
        num_tokens=31,
        accepted=[4, 2, 0, 4],
        verified=[4, 4, 4, 4],
        draft_s=0.01,
        verify_s=0.02,
        host_s=0.002,
    )
    machine = Machine(processor="<script>alert(1)</script>", num_cores=2, load=0.5)
    report = BenchReport(
        bundle=str(bundle),
        pair="dspark | 4 drafts",
        max_tokens=16,
        num_prompts=2,
        form="chat template",
        repeats=2,
        schedule="all",
        versions={},
        before=machine,
        after=machine,
        systems=[summary("plain", None, 1.0), summary("speculative", stats, 1.75)],
        costs=[
            Costs(draft_ms=1.0, verify_ms={1: 2.0, 4: 2.5, 8: 4.0}, context=256),
            Costs(draft_ms=1.5, verify_ms={1: 3.0, 4: 3.5, 8: 5.0}, context=4096),
        ],
        peak_memory_bytes=None,
        cache_bytes_per_token={"drafter": 256},
        notes=["a note with a | in it"],
    )
    path.write_text(json.dumps(report.to_json()))
    return path


def report(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["report", *map(str, arguments)])


class Page(HTMLParser):
    """Checks that tags are balanced, and keeps attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_report_says_what_was_found_and_loads_nothing(bundle: Path, tmp_path: Path) -> None:
    bench = write_bench(bundle, tmp_path / "bench.json")
    files = {kind: tmp_path / f"report.{kind}" for kind in ("html", "md", "json")}
    done = report(
        bundle,
        "-o",
        files["html"],
        "--markdown",
        files["md"],
        "--json",
        files["json"],
        "--bench",
        bench,
    )
    assert done.exit_code == 0, done.output
    text = files["html"].read_text()
    page = Page(text)
    assert page.open == []
    tags = {tag for tag, _ in page.seen}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base"})
    named = {name for _, attributes in page.seen for name in attributes}
    assert named.isdisjoint({"src", "href", "onclick", "onload", "style"})
    assert not re.search(r"https?:|url\(|@import|//", text.partition("</head>")[0])
    assert "prefers-color-scheme: dark" in text
    words = " ".join(page.words)
    for told in (NASTY, "same", "1.75 × plain decoding", "3.50 tokens a round", "<script>alert(1)"):
        assert told in words
    assert "KL divergence, largest" in words
    digests = [entry.sha256 for entry in read_manifest(bundle).files.values()]
    assert all(digest in words for digest in digests)
    data = json.loads(files["json"].read_text())
    assert (data["verdict"], data["bundle"]) == ("same", NASTY)
    assert data["bench"] == json.loads(bench.read_text())
    assert data["parity"]["same"] is True
    facts = data["manifest"]["drafter"]["sources"]
    assert all(name in words for name in facts)


def test_markdown_has_the_same_figures_in_whole_tables(bundle: Path, tmp_path: Path) -> None:
    bench = write_bench(bundle, tmp_path / "bench.json")
    path = tmp_path / "report.md"
    done = report(bundle, "-o", tmp_path / "r.html", "--markdown", path, "--bench", bench)
    assert done.exit_code == 0, done.output
    text = path.read_text()
    assert "<script>" not in text
    assert "a note with a \\| in it" in text
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) > 8
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1
    assert "| 4096 | 8 | 5 |" in text
    assert "| 1 | 0.750 |" in text
    assert "| 4 | 0.500 |" in text


def test_a_parity_check_that_differs_is_written_and_is_exit_code_3(
    bundle: Path, tmp_path: Path
) -> None:
    checked = CliRunner().invoke(group, ["validate", "parity", str(bundle), "--json"])
    data = json.loads(checked.stdout)
    data["same"] = False
    data["rounds"][0]["outputs"][0]["same"] = False
    found = tmp_path / "parity.json"
    found.write_text(json.dumps(data))
    out = tmp_path / "report.html"
    done = report(bundle, "-o", out, "--parity", found)
    assert done.exit_code == 3, done.output
    assert "the graph and pytorch differ" in done.stderr
    assert '<b class="bad">different</b>' in out.read_text()
    assert "parity.json, by draftrt validate parity --json" in out.read_text()


def test_what_is_not_this_bundles_is_refused(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    other = write_bench("elsewhere/other", tmp_path / "other.json")
    done = report(bundle, "-o", out, "--no-parity", "--bench", other)
    assert done.exit_code == 1
    assert "is about bundle other, expected" in done.stderr
    other.write_text("{}")
    done = report(bundle, "-o", out, "--no-parity", "--bench", other)
    assert done.exit_code == 1
    assert "got JSON without bundle, systems, costs, processor" in done.stderr
    other.write_text("no JSON")
    assert report(bundle, "-o", out, "--no-parity", "--bench", other).exit_code == 1
    data = bundle / "draft.onnx.data"
    data.write_bytes(bytes(data.stat().st_size))
    done = report(bundle, "-o", out, "--no-parity")
    assert done.exit_code == 1
    assert "the bundle was changed or damaged after it was written" in done.stderr
    assert not out.exists()


def test_what_the_doctor_found_is_a_part_of_the_page(bundle: Path, tmp_path: Path) -> None:
    def about(mean: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
        return {"mean": mean, "low": low, "high": high, "rounds": 40}

    data = {
        "bundle": str(bundle),
        "acceptance_length": about(2.5, 2.25, 2.75),
        "verdicts": ["rope.theta: 500000 <instead> of 10000 would help"],
        "by_position": [0.8, 0.4],
        "by_context": [
            {"first": 0, "last": 63, **about(2.0)},
            {"first": 64, "last": 127, **about(3.0, 2.5, 3.5)},
        ],
        "suspects": [
            {"fact": "rope.theta", "change": "500000", "gain": about(1.5, 1.0, 2.0), "better": True}
        ],
        "forms": [],
    }
    found = tmp_path / "doctor.json"
    found.write_text(json.dumps(data))
    out, text = tmp_path / "report.html", tmp_path / "report.md"
    done = report(bundle, "-o", out, "--markdown", text, "--no-parity", "--doctor", found)
    assert done.exit_code == 0, done.output
    page = " ".join(Page(out.read_text()).words)
    assert "2.50 tokens a round (2.25 to 2.75), over 40 rounds" in page
    assert "500000 <instead> of 10000 would help" in page
    assert "<instead>" not in out.read_text()
    told = text.read_text()
    assert "| rope.theta | 500000 | 1.50 (1.00 to 2.00) | yes |" in told
    assert "| 64–127 | 3.00 (2.50 to 3.50) | 40 |" in told
    assert "| 2 | 0.400 |" in told
    del data["suspects"]
    found.write_text(json.dumps(data))
    done = report(bundle, "-o", out, "--no-parity", "--doctor", found)
    assert done.exit_code == 1
    assert "got JSON without suspects" in done.stderr


def test_wrong_usage_is_told_before_anything_is_written(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = report(bundle, "-o", out, "--no-parity", "--parity", out)
    assert done.exit_code == 2
    done = report(bundle, "-o", out, "--no-parity", "--json", tmp_path / "absent" / "report.json")
    assert done.exit_code == 2
    assert "no such folder" in done.stderr
    done = report(bundle, "-o", out, "--no-parity", "--markdown", out)
    assert done.exit_code == 2
    assert "got one file for --out and --markdown, expected two files" in done.stderr
    assert not out.exists()
    before = (bundle / "manifest.json").read_bytes()
    done = report(bundle, "-o", bundle / "manifest.json", "--no-parity")
    assert done.exit_code == 2
    assert "lies in the bundle, which holds its own files alone" in done.stderr
    assert (bundle / "manifest.json").read_bytes() == before


def test_without_parity_no_torch_is_needed_and_that_is_said(
    bundle: Path, tmp_path: Path, root: Path
) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['onnx'] = None\n"
        "from draftrt.cli import group; group(sys.argv[1:], standalone_mode=False)"
    )
    out = tmp_path / "report.html"
    words = ["report", str(bundle), "-o", str(out), "--no-parity"]
    run = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert '<b class="open">not checked</b>' in out.read_text()


def heights(svg: str) -> list[float]:
    return [float(height) for height in re.findall(r'<rect class="c1"[^>]* height="([\d.]+)"', svg)]


def test_bars_are_as_high_as_their_values_and_stay_in_the_picture() -> None:
    svg = bars("t", [1.0, 0.5, 0.0, 2.0, float("nan")], list("abcde"), axis="x", most=1.0)
    whole = HEIGHT - TOP - BOTTOM
    assert heights(svg) == [whole, whole / 2, 0.0, whole, 0.0]
    assert Page(svg).open == []


def test_a_split_bar_has_the_shares_of_its_parts() -> None:
    svg = split("t", {"draft": 1.0, "verify": 3.0, "<host>": 0.0}, unit="ms")
    widths = [float(w) for w in re.findall(r'y="8" width="([\d.]+)"', svg)]
    assert widths == [pytest.approx((WIDTH - 8) * share, abs=0.6) for share in (0.25, 0.75, 0)]
    assert "verify  3 ms, 75.0%" in svg
    assert "&lt;host&gt;" in svg


def test_lines_pass_through_their_points() -> None:
    svg = lines("t", {"near": {1: 2.0, 16: 4.0}, "far": {1: 3.0}}, axis="rows", unit="ms")
    circles = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert len(circles) == 3
    x, y = (float(place) for place in circles[1])
    assert x == pytest.approx(WIDTH - 10, abs=0.1)
    assert y == pytest.approx(TOP + (HEIGHT - TOP - BOTTOM) * (1 - 4.0 / 5.4), abs=0.1)
    assert lines("t", {}, axis="rows", unit="ms").startswith("<svg")


def test_markdown_shows_any_text_as_it_is() -> None:
    assert plain("a|b\n*c* [d](e) <f> #g") == r"a\|b \*c\* \[d\](e) \<f\> \#g"

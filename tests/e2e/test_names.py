"""Checkpoints by name: ``owner/name[@revision]``, from a server that speaks the hub's protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftrt.bundle import Bundle
from draftrt.bundle_files import Verify
from tests.hub_server import HubServer, Repository, files_of, hub_server
from tests.waiting import started, until

pytest.importorskip("huggingface_hub")

WEIGHTS = "model.safetensors"
# Commands of one process: they share the import, and the settings that are read then.
CHILD = """
import json, sys
from click.testing import CliRunner
from draftrt.cli import group
for arguments in json.loads(sys.argv[1]):
    done = CliRunner().invoke(group, arguments)
    print(json.dumps([done.exit_code, done.stdout, done.stderr]), flush=True)
"""


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    exit_code: int
    out: str
    err: str


def settings(server: HubServer, home: Path, **more: str) -> dict[str, str]:
    """The environment of a child that talks to the server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    address = {"HF_ENDPOINT": server.address, "HF_HOME": str(home)}
    return kept | address | {"HF_HUB_DISABLE_TELEMETRY": "1"} | more


def outcomes(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], folder: Path
) -> list[Outcome]:
    """Run commands one behind another in one process, in a folder."""
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([list(map(str, one)) for one in commands])],
        env={**environment, "PYTHONPATH": root},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Outcome(*json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def checkpoints(assets: Path) -> dict[str, dict[str, bytes]]:
    """The shipped pair as repositories, with files beside it that nobody asked for."""
    more = {
        "pytorch_model.bin": b"pickle",
        "modeling_odd.py": b"raise SystemExit",
        "README.md": b"#",
    }
    return {
        "draft": files_of(assets / "tiny-dflash") | more,
        "target": files_of(assets / "tiny-target") | more,
    }


@pytest.fixture
def server(checkpoints: dict[str, dict[str, bytes]]) -> Iterator[HubServer]:
    """A server with the pair, and with repositories that misbehave."""
    draft, target = checkpoints["draft"], checkpoints["target"]
    only_pickles = {name: content for name, content in draft.items() if name != WEIGHTS}
    index = json.dumps({"weight_map": {"norm.weight": "lost-00002-of-2.safetensors"}}).encode()
    repositories = {
        "pub/draft": Repository(draft),
        "pub/target": Repository(target),
        "pub/gated": Repository(draft, gated=(403, "GatedRepo")),
        "pub/private": Repository(draft, gated=(401, "")),
        "pub/forbidden": Repository(draft, gated=(403, "")),
        "pub/down": Repository(draft, gated=(500, "")),
        "pub/lost": Repository(draft, lost=frozenset({WEIGHTS})),
        "pub/wrong": Repository(draft, wrong=frozenset({WEIGHTS})),
        "pub/wrong-config": Repository(draft, wrong=frozenset({"config.json"})),
        "pub/pickles": Repository(only_pickles),
        "pub/no-config": Repository({"README.md": b"", WEIGHTS: draft[WEIGHTS]}),
        "pub/no-shard": Repository(draft | {"model.safetensors.index.json": index}),
        "pub/whole": Repository(draft, no_ranges=True),
    }
    with hub_server(repositories) as state:
        yield state


FAULTS = {
    "pub/gated": "only to accounts that were granted access",
    "pub/private": "no such repository on",
    "pub/forbidden": "only to accounts that were granted access",
    "pub/down": "answered 500",
    "pub/lost": f"lists {WEIGHTS}, but does not have it",
    "pub/wrong-config": "config.json: got content with hash",
    "pub/pickles": "no safetensors file, only pytorch_model.bin",
    "pub/no-config": "no config.json among 2 files",
    "pub/no-shard": "names 'lost-00002-of-2.safetensors', which the repository has not",
    "pub/nothing": "no such folder here, and no such repository on",
    "pub/draft@v9": "no revision 'v9'",
    "pub/draft@../../x": "got revision '../../x', expected a branch, a tag or a commit",
    "pub/draft@": "got revision ''",
    "../pub/draft": "no such folder",
    "pub/../draft": "no such folder",
    "pub/dra ft": "no such folder",
    "pub/dra--ft": "no such folder",
    "pub/" + "d" * 120: "no such folder",
    "pub/draft.git": "no such folder",
    "pub/draft/more": "no such folder",
    "pub/drâft": "no such folder",
}


def test_a_name_that_cannot_be_had_is_one_sentence_and_leaves_no_snapshot_in_use(
    server: HubServer, tmp_path: Path
) -> None:
    environment = settings(server, tmp_path / "home")
    whole = ["pub/wrong", "pub/lost", "pub/no-shard"]
    exports = [["export", name, "--target", "pub/target", "-o", "b"] for name in whole]
    inspects = [["inspect", name] for name in (*FAULTS, "pub/whole")]
    found = outcomes([*inspects, *exports], environment, tmp_path)
    for (name, words), one in zip(FAULTS.items(), found, strict=False):
        assert one.exit_code == 1, (name, one)
        assert words in one.err, name
        assert "Traceback" not in one.err
        assert sum(line.startswith("Error: ") for line in one.err.splitlines()) == 1, one.err
    assert "the hub gives no parts of a file" in found[len(FAULTS)].err
    for name, one in zip(whole, found[len(inspects) :], strict=True):
        assert one.exit_code == 1, one
        assert FAULTS.get(name, f"{WEIGHTS}: got content with hash") in one.err, one.err
    assert not (tmp_path / "b").exists()
    offline = settings(server, tmp_path / "home", HF_HUB_OFFLINE="1")
    for name, one in zip(whole, outcomes(exports, offline, tmp_path), strict=True):
        assert one.exit_code == 1, one
        assert "the cache holds a part of it" in one.err, (name, one.err)


def test_inspect_and_plan_take_configs_and_headers_alone(server: HubServer, tmp_path: Path) -> None:
    environment = settings(server, tmp_path / "home")
    pair = ["pub/draft", "--target", "pub/target@v1"]
    inspected, planned = outcomes(
        [["inspect", *pair, "--json"], ["plan", *pair, "--json"]], environment, tmp_path
    )
    assert inspected.exit_code == planned.exit_code == 0, (inspected.err, planned.err)
    commit = server.repositories["pub/draft"].commit
    assert f"pub/draft: commit {commit} on the hub" in inspected.err
    assert json.loads(inspected.out)["facts"]["num_layers"] == 2
    assert json.loads(planned.out)["graphs"]
    asked = [(path.rsplit("/", 1)[1], part) for _, path, part in server.asked if "resolve" in path]
    assert {part for name, part in asked if name == WEIGHTS} == {"bytes=0-65535"}
    assert not [name for name, _ in asked if name.endswith((".py", ".bin", ".md"))]
    assert not list(tmp_path.rglob("*.safetensors"))


def test_an_export_by_name_pins_what_it_took_and_goes_on_behind_what_was_broken_off(
    server: HubServer, tmp_path: Path
) -> None:
    """Once the server breaks an answer off, once the command is ended: no byte comes twice."""
    home, size = tmp_path / "home", len(server.repositories["pub/draft"].files[WEIGHTS])
    server.repositories["pub/draft"].stalls = {WEIGHTS}
    server.repositories["pub/target"].breaks = {WEIGHTS: 1}
    environment = settings(server, home) | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    take = "import pathlib, draftrt.hub.fetch as f; f.local_folder(pathlib.Path('pub/draft'))"
    with started([sys.executable, "-c", take], env=environment, cwd=tmp_path) as process:
        until(server.half_way.is_set, process=process)
        (part,) = [*home.rglob("*.draftrt.incomplete")]
        until(lambda: part.stat().st_size > 0, process=process)
        process.kill()
        process.wait()
    held = part.stat().st_size
    server.asked.clear()
    quick = ["--weights", "link", "--no-target-graph", "-o", "bundle"]
    command = ["export", "pub/draft", "--target", "pub/target", *quick]
    (done,) = outcomes([command], environment, tmp_path)
    assert done.exit_code == 0, done.err
    assert f"pub/draft: {WEIGHTS}: goes on behind" in done.err
    ranges = [part for verb, path, part in server.asked if verb == "GET" and WEIGHTS in path]
    target = len(server.repositories["pub/target"].files[WEIGHTS])
    assert sorted(ranges) == sorted(["", f"bytes={held}-", f"bytes={target // 2}-"]), (held, size)
    taken = {path.name for path in home.rglob("snapshots/*/*")}
    assert taken >= {"config.json", WEIGHTS, "tokenizer.json", "chat_template.jinja"}
    assert not [name for name in taken if name.endswith((".py", ".bin", ".md"))]
    origins = Bundle.open(tmp_path / "bundle", verify=Verify.ALL).manifest.origins
    for graph in ("draft", "target"):
        repository = server.repositories[f"pub/{graph}"]
        assert origins[graph].repository == f"pub/{graph}"
        assert origins[graph].commit == repository.commit
        assert len(origins[graph].files[WEIGHTS]) == 64
    offline = settings(server, home, HF_HUB_OFFLINE="1")
    snapshot = next(home.rglob("models--pub--draft/snapshots/*"))
    (tmp_path / "pub" / "target").mkdir(parents=True)
    found = outcomes(
        [
            ["inspect", "pub/draft"],
            ["inspect", f"pub/draft@{snapshot.name}"],
            ["inspect", "pub/absent"],
            ["inspect", str(snapshot)],
            ["inspect", "--target", "pub/target"],
        ],
        offline,
        tmp_path,
    )
    assert [one.exit_code for one in found] == [0, 0, 1, 0, 1], found
    assert "the hub was not asked" in found[0].err
    assert "HF_HUB_OFFLINE is set" in found[2].err
    assert "taken as the folder here, not as a name on the hub" in found[4].err


def test_without_its_package_a_name_says_which_extra_brings_it(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['huggingface_hub'] = None\n"
    probe = blocked + CHILD.replace("sys.argv[1]", '\'[["inspect", "pub/draft"]]\'')
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env={**os.environ, "PYTHONPATH": root},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = Outcome(*json.loads(done.stdout))
    assert found.exit_code == 1
    assert "pip install 'draftrt[hub]'" in found.err

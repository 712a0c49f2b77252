"""Labels that contradict a drafter's heads: one finding, and a way out that checks all the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftrt.cli import group
from tests.toys.models import REMOVED, Kind

DSPARK, ZLAB, DFLASH2 = Kind.DEEPSPEC_DSPARK, Kind.ZLAB_DFLASH, Kind.ZLAB_DFLASH2
OTHER = {"architectures": ["DFlashDraftModel"]}
FORK = {"architectures": ["SomeForksDraftModel"]}


@pytest.mark.parametrize(
    ("kind", "config", "says", "family"),
    [
        (DSPARK, OTHER, "markov_rank 12 and a confidence head in a dflash drafter", "dspark"),
        (DSPARK, FORK, "'SomeForksDraftModel' is not a supported drafter", "dspark"),
        (DSPARK, {"architectures": REMOVED}, "family is missing", "dspark"),
        (ZLAB, {"projector_type": "dspark"}, "family is stated with different values", "dflash"),
        (
            ZLAB,
            {"architectures": ["DFlashDraftModel", "DSparkDraftModel"]},
            "architectures, DSparkDraftModel",
            "dflash",
        ),
        (ZLAB, FORK, "'SomeForksDraftModel' is not a supported drafter", "dflash"),
        (DFLASH2, FORK, "'SomeForksDraftModel' is not a supported drafter", "dflash2"),
    ],
)
def test_a_wrong_label_is_one_finding_with_a_way_out(
    kind: Kind,
    config: dict[str, object],
    says: str,
    family: str,
    draft: Callable[..., Path],
    inspect: Callable[..., Result],
) -> None:
    folder = draft(kind, overrides=config)
    told = inspect(folder)
    assert told.exit_code == 1
    assert says in told.stderr.splitlines()[0]
    assert "--family" in told.stderr
    assert "problems found" not in told.stderr
    stated = inspect(folder, "--family", family)
    assert stated.exit_code == 0, stated.stderr
    assert "--family, stated by the user" in stated.stdout
    said = re.search(r"sample_from_anchor .*default of (\S+)", stated.stdout)
    assert said is None or said[1] == family, "the alignment is that of the family, not the label"
    is_against = config == OTHER or "projector_type" in config or "architectures, " in says
    assert (f"family {family} is taken from --family, against" in stated.stderr) == is_against


@pytest.mark.parametrize(
    ("kind", "family", "says"),
    [
        (DSPARK, "dflash", "markov_rank 12 and a confidence head in a dflash drafter (--family"),
        (ZLAB, "dflash2", "selector_rank is missing"),
        (DFLASH2, "dflash", "in a dflash drafter (--family"),
    ],
)
def test_a_stated_family_that_contradicts_the_checkpoint_is_refused(
    kind: Kind,
    family: str,
    says: str,
    draft: Callable[..., Path],
    inspect: Callable[..., Result],
) -> None:
    told = inspect(draft(kind), "--family", family)
    assert told.exit_code == 1
    assert says in told.stderr


@pytest.mark.parametrize(
    "command",
    [
        "export",
        "plan",
        pytest.param("engine", marks=pytest.mark.trt),
        "validate record-trajectories",
    ],
)
def test_every_command_that_loads_a_drafter_by_its_config_takes_the_statements(
    command: str, draft: Callable[..., Path], other_target: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    folder, target = draft(Kind.SPECULATORS_DSPARK), other_target()
    words = [*command.split(), str(folder), "--target", str(target)]
    if command != "plan":
        words += ["-o", str(tmp_path / "out")]
    if "record" in command:
        (tmp_path / "prompts.txt").write_text("A song\n", encoding="utf-8")
        words += ["--prompts", str(tmp_path / "prompts.txt")]
    told = CliRunner().invoke(group, [*words, "--family", "dflash2", "--no-sample-from-anchor"])
    assert told.exit_code == 1
    assert "in a dflash2 drafter (--family, stated by the user)" in told.stderr
    assert "{'--sample-from-anchor': False, 'sample_from_anchor': True}" in told.stderr
    assert not (tmp_path / "out").exists()

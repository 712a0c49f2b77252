"""A target with states over many random rounds, against computing each text anew."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from draftrt.bundle import Bundle
from draftrt.cli import group
from draftrt.runtime.load import open_graph
from draftrt.runtime.targets.graph import GraphTarget

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MOST = 180
ROWS = 16


@pytest.fixture(scope="module")
def targets(
    assets: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GraphTarget, GraphTarget]]:
    """One target that decodes, and one that computes every text anew."""
    out = tmp_path_factory.mktemp("rounds") / "bundle"
    words = ["export", "--target", assets / "tiny-hybrid", "-o", out, "--precision", "fp32"]
    done = CliRunner().invoke(group, [str(one) for one in [*words, "--max-context", 256]])
    assert done.exit_code == 0, done.output
    bundle = Bundle.open(out)
    most = bundle.graph("target").max_context
    with open_graph(bundle, "target") as one, open_graph(bundle, "target") as other:
        yield GraphTarget(one, most), GraphTarget(other, most)


def whole(target: GraphTarget, ids: list[int], rows: int) -> tuple[Any, Any]:
    """The last rows of a text that is computed from its first token on."""
    target.rollback(0)
    if len(ids) > rows:
        target.prefill(np.array(ids[:-rows], np.int64))
    found = target.verify(np.array(ids[-rows:], np.int64), want_logits=True)
    return found.token_ids, found.logits


def num_states(target: GraphTarget) -> int:
    """How many copies of states the session holds."""
    session: Any = target.session
    return sum(len(copies) for copies in session._states.values())


class Breaking:
    """Breaks off a call of a graph before or behind its work."""

    def __init__(self, target: GraphTarget) -> None:
        self._session: Any = target.session
        self._run = self._session.run

    def once(self, *, is_done: bool) -> None:
        def run(*given: Any, **named: Any) -> Any:
            self._session.run = self._run
            if is_done:
                self._run(*given, **named)
            raise KeyboardInterrupt

        self._session.run = run


@pytest.mark.parametrize(
    "count", [40, pytest.param(1000, marks=pytest.mark.extended)], ids=["few", "many"]
)
def test_random_rounds_equal_computing_every_text_anew(
    targets: tuple[GraphTarget, GraphTarget], count: int
) -> None:
    target, anew = targets
    rng, breaking = random.Random(23), Breaking(target)
    text: list[int] = []
    held = before = 0
    worst, kinds = 0.0, set[str]()
    for number in range(count):
        if not text or len(text) > MOST:
            target.rollback(0)
            text = [rng.randrange(400) for _ in range(rng.randint(1, 70))]
            target.prefill(np.array(text, np.int64))
        block = [rng.randrange(400) for _ in range(rng.choice([1, 1, 2, 8, ROWS]))]
        if rng.random() < 0.15:
            breaking.once(is_done=rng.random() < 0.5)
            with pytest.raises(KeyboardInterrupt):
                target.verify(np.array(block, np.int64))
            target.rollback(len(text))  # as the loop does before it goes on
            kinds.add("broken off")
        if rng.random() < 0.1:
            snapshot = target.snapshot()
            target.verify(np.array(block, np.int64))
            target.restore(snapshot)
            kinds.add("snapshot")
        rows = target.verify(np.array(block, np.int64), want_logits=True)
        ids, logits = whole(anew, text + block, len(block))
        assert rows.logits is not None
        worst = max(worst, float(np.abs(rows.logits - logits).max()))
        assert worst < 2e-4, (number, worst)
        best = np.sort(logits, axis=-1)
        clear = best[:, -1] - best[:, -2] > 1e-3
        assert (rows.token_ids == ids)[clear].all(), number
        kept = rng.choice([0, len(block), rng.randint(0, len(block))])
        kinds |= {"none" if not kept else "all" if kept == len(block) else "some"}
        text += block[:kept]
        if rng.random() < 0.05 and len(text) > 3:
            del text[rng.randrange(1, len(text)) :]  # further back than the last call
            kinds.add("far back")
        target.rollback(len(text))
        if number == 20:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            held = num_states(target)
    assert kinds == {"broken off", "snapshot", "none", "all", "some", "far back"}
    assert num_states(target) == held
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10

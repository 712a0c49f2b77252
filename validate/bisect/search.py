"""The search for the first place where one graph leaves its reference.

Values are fetched in groups, coarse ones first: all outside the layers, what goes into each layer,
and the caches. Only between the last of those that agree and that all of the way passes through,
and the first that does not, all values are fetched: a layer's caches depend on half of it, so the
way back goes on to what went into the layer. A graph takes two sessions, however large it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draftrt.spec import DrafterSpec, Precision
from draftrt.tolerances import Limit, limit_of
from draftrt.validate.bisect.explain import Evidence, explain
from draftrt.validate.bisect.gaps import Gap, gap_at, is_tie
from draftrt.validate.bisect.graph import Graph
from draftrt.validate.bisect.module import CACHES, INTO, RecordedPlace
from draftrt.validate.bisect.rounds import Arrays, MarkedGraph, ReferenceRound

if TYPE_CHECKING:
    from draftrt.export.graph.differences import NodeDifference

BACKEND = "onnxruntime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place where a graph leaves its reference.

    Attributes:
        place: where.
        value: name of the value in the graph.
        node: name of the node that most likely makes the difference, which may be one that the
            graph lacks; empty for an input.
        op: its operator.
        nodes: (name, operator) of every node between the last values that agree and this one.
        context_length: rows committed before the round that shows it most.
        new_rows: rows of new context in that round.
        before: largest error up to there, relative to the largest value of its array.
        after: the same at the place; infinite where values are missing, ids or no numbers.
        allowed: what that may be.
        problem: got and expected.
        evidence: what the graph's value turned out to be, where that could be seen.
        usual: what a difference at such a place usually means.
        lost: weights that the reference uses up to there and the graph does not.
    """

    place: RecordedPlace
    value: str
    node: str
    op: str
    nodes: tuple[tuple[str, str], ...]
    context_length: int
    new_rows: int
    before: float
    after: float
    allowed: float
    problem: str
    evidence: tuple[str, ...]
    usual: str
    lost: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Search:
    """A search in one graph.

    Attributes:
        graph: the graph.
        rounds: what the reference computed.
        spec: the reference's drafter.
        precision: element type of the graph.
        edits: nodes that are not as the facts give them.
        places: those that reference and graph both show, in the reference's order.
        values: their names in the graph.
        marked: runs the graph.
    """

    graph: Graph
    rounds: Sequence[ReferenceRound]
    spec: DrafterSpec
    precision: Precision
    edits: Sequence[NodeDifference] = ()
    values: Mapping[RecordedPlace, str] = field(init=False)
    places: list[RecordedPlace] = field(init=False)
    marked: MarkedGraph = field(init=False)

    def __post_init__(self) -> None:
        """Match the places."""
        self.values = self.graph.values(self.rounds[0].values)
        self.places = list(self.values)
        self.marked = MarkedGraph(self.graph)

    def first(self) -> Divergence | None:
        """Return the first place where the graph leaves the reference."""
        coarse = [i for i, place in enumerate(self.places) if self._is_coarse(place)]
        gaps = self.gaps_at(coarse)
        bad = next((i for i in coarse if not gaps[i]), None)
        if bad is None:
            return None
        good = max((i for i in coarse if i < bad and self._is_passed(self.places[i])), default=-1)
        fine = list(range(good + 1, bad + 1))
        gaps |= self.gaps_at(fine)
        bad = next(i for i in fine if not gaps[i])
        return self._describe(bad, gaps)

    def _is_coarse(self, place: RecordedPlace) -> bool:
        """Whether a place is looked at in the first session: all outside the layers, and a few."""
        is_start = place.step == "input_layernorm" and place.side == INTO
        return place.layer is None or is_start or place.step in CACHES

    def _is_passed(self, place: RecordedPlace) -> bool:
        """Whether all that comes behind a coarse place depends on it alone, caches do not count."""
        return place.step not in CACHES

    def gaps_at(self, indices: Sequence[int]) -> dict[int, Gap]:
        """Fetch places in one session; return for each the worst gap over the rounds."""
        names = [self.values[self.places[i]] for i in indices]
        runs = self.marked.run(names, self.rounds)
        worst: dict[int, Gap] = {}
        for number, (one, got) in enumerate(zip(self.rounds, runs, strict=True)):
            for i in indices:
                gap = self._gap(self.places[i], one, got, number)
                if not gap and is_tie(self.places[i], one.values, gap, self._limit()):
                    break  # what follows is conditioned on another token
                if i not in worst or gap.excess > worst[i].excess:
                    worst[i] = gap
        return {i: worst.get(i, Gap.none()) for i in indices}

    def _gap(self, place: RecordedPlace, one: ReferenceRound, got: Arrays, number: int) -> Gap:
        return gap_at(place, one, got[self.values[place]], self._limit(), number=number)

    def _limit(self) -> Limit:
        return limit_of(BACKEND, self.precision, "hidden")

    def _describe(self, bad: int, gaps: Mapping[int, Gap]) -> Divergence:
        place, gap = self.places[bad], gaps[bad]
        one = self.rounds[gap.round]
        known = {self.values[earlier] for earlier in self.places[:bad]}
        name = self.values[place]
        nodes = self.graph.between(name, known - {name})
        entered = self.graph.entering(place) if place.side == INTO else None
        order = list(one.values)
        lost = self._lost(order[: order.index(place) + 1])
        told = explain(
            Evidence(
                place=place,
                gap=gap,
                round=one,
                spec=self.spec,
                nodes=nodes,
                readers=[] if entered is None else [entered[0]],
                upstream=self.graph.between(name, ()),
                lost=tuple(lost),
                edits=self.edits,
            )
        )
        return Divergence(
            place=place,
            value=name,
            node=told.node,
            op=told.op,
            nodes=tuple((node.name, node.op_type) for node in nodes),
            context_length=one.context_length,
            new_rows=one.valid - one.context_length - self.spec.block_size,
            before=max((gaps[i].relative for i in gaps if i < bad), default=0.0),
            after=gap.relative,
            allowed=gap.allowed,
            problem=gap.problem,
            evidence=told.sentences,
            usual=told.usual,
            lost=tuple(dict.fromkeys(lost)),
        )

    def _lost(self, reached: Sequence[RecordedPlace]) -> list[str]:
        """Return the weights that the reference has used by then and no node of the graph reads."""
        from draftrt.export.models.shapes import table_shapes, tensor_shapes

        weights = {*tensor_shapes(self.spec), *table_shapes(self.spec.rope, 1)}
        used = (name for place in reached for name in place.weights if place not in self.values)
        return [name for name in used if name in weights and not self.graph.reads(name)]

"""What a round is worth: whose drafts, how many of them, or none, by what rounds brought so far.

A round that verifies k drafts takes the time of the drafts and of a target call over k + 1 rows,
and brings one token and each draft that is kept. Both are learnt while a text is decoded: times by
the rows of a call, and for each source of drafts how often the draft at each place is kept where
those before it were. The round with the most tokens a second is taken. Where that is one without
drafts, the drafter rests, for longer each time, and is tried again.

A choice looks at rounds that are over and at confidences of earlier drafts, never at a token that
it decides about, so that decoding stays lossless (see `draftrt.runtime.decoding.schedule`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftrt.manifest import Costs
from draftrt.runtime.decoding.lookup import LONGEST, SHORTEST
from draftrt.runtime.decoding.schedule import survival_length
from draftrt.runtime.decoding.stats import Source

FIRST_GUESS = 0.7  # of a drafter's draft, before any was verified
FIRST_LOOKUP = {2: 0.1, 3: 0.3, 4: 0.5}  # of a draft from the text, by the tokens that agree
REST = (8, 128)  # rounds without the drafter: the first time, and at most
HOPE = 0.6  # a drafter that is tried again is taken to be this good
MEMORY = 0.9  # weight of what was known, a round later
SLOWER = 0.9  # weight of a known time, when another is measured
CLEAR, HELD = 1.3, 3  # times plain decoding: then the next rounds are like this one
REUSED = 8  # rounds that take the same times before they are worked out again
FEW = 3  # measurements of which the least counts
ENOUGH = 0.5  # of all drafts kept by the drafter: then the text is not asked
OUTLIER = 2.0  # times further off than this factor count as this far off


class Odds:
    """How often the draft at each place is kept, if those before it are; recent rounds count more.

    A place of which little is known is taken to be like the one before it.
    """

    def __init__(self, num_drafts: int, first: float) -> None:
        self._first = first
        self._kept = [0.0] * num_drafts
        self._seen = [0.0] * num_drafts

    def note(self, num_verified: int, num_accepted: int) -> None:
        """Learn from one verification."""
        for place in range(min(num_verified, num_accepted + 1, len(self._seen))):
            self._kept[place] = MEMORY * self._kept[place] + (place < num_accepted)
            self._seen[place] = MEMORY * self._seen[place] + 1

    def estimates(self) -> list[float]:
        """Return the probability of each place."""
        found, before = [], self._first
        for kept, seen in zip(self._kept, self._seen, strict=True):
            before = (kept + before) / (seen + 1)
            found.append(before)
        return found


class Times:
    """Milliseconds of a drafter's call, and of a target's by its rows."""

    def __init__(self, costs: Costs | None) -> None:
        self._draft = None if costs is None else Measured(costs.draft_ms, FEW)
        known = {} if costs is None else costs.verify_ms
        self._verify = {rows: Measured(ms, FEW) for rows, ms in known.items()}
        self._rounds: list[float] = []
        self._notes = 0

    @property
    def has_draft(self) -> bool:
        """Whether the drafter was timed."""
        return self._draft is not None

    @property
    def is_known(self) -> bool:
        """Whether a round without drafts can be told from one with them."""
        return self.has_draft and 1 in self._verify and len(self._verify) > 1

    def note_draft(self, ms: float) -> None:
        """Learn from a call of the drafter."""
        if self._draft is None:
            self._draft = Measured(ms)
        else:
            self._draft.note(ms)

    def note_verify(self, rows: int, ms: float) -> None:
        """Learn from a call of the target."""
        self._notes += 1
        if rows in self._verify:
            self._verify[rows].note(ms)
        else:
            self._verify[rows], self._notes = Measured(ms), 0

    def rounds(self, num_drafts: int) -> list[float]:
        """Return the time of the target's call that verifies 0, 1, ... ``num_drafts`` drafts.

        Single times are too uneven to be compared: the rows beyond the first cost the same each,
        as the least squares of all measured calls have it, and never less than nothing.
        """
        if len(self._rounds) == num_drafts + 1 and self._notes % REUSED:
            return self._rounds
        plain = self._verify[1].ms
        known = [(rows - 1, one.ms - plain) for rows, one in self._verify.items() if rows > 1]
        slope = sum(x * y for x, y in known) / sum(x * x for x, _ in known)
        self._rounds = [plain + max(slope, 0.0) * count for count in range(num_drafts + 1)]
        return self._rounds

    def drafted(self, verify_ms: Sequence[float]) -> list[float]:
        """Return such times with the drafter's call before."""
        drafting = 0.0 if self._draft is None else self._draft.ms
        return [drafting + ms for ms in verify_ms]


class Measured:
    """A time that is measured again and again.

    The first call of a kind also pays for its preparation, so the least of a few counts; later ones
    move it slowly.
    """

    def __init__(self, ms: float, count: int = 1) -> None:
        self.ms = ms
        self._count = count

    def note(self, ms: float) -> None:
        """Take one more measurement."""
        self._count += 1
        if self._count <= FEW:
            self.ms = min(self.ms, ms)
        else:
            near = min(max(ms, self.ms / OUTLIER), self.ms * OUTLIER)
            self.ms = SLOWER * self.ms + (1 - SLOWER) * near


@dataclass(frozen=True, slots=True)
class RoundChoice:
    """What the next round verifies.

    Attributes:
        source: of its drafts.
        length: how many of them, at most.
    """

    source: Source
    length: int


class Pace:
    """Chooses the drafts of each round of a pair; what it learnt holds for later texts too."""

    def __init__(self, num_drafts: int, costs: Costs | None = None) -> None:
        """Begin with what is known.

        Args:
            num_drafts: most drafts that a round verifies.
            costs: times that were measured before; None: they are measured by the first rounds.
        """
        self._most = num_drafts
        self.times = Times(costs)
        self._drafter = Odds(num_drafts, FIRST_GUESS)
        self._text = {
            length: Odds(num_drafts, FIRST_LOOKUP[length])
            for length in range(SHORTEST, LONGEST + 1)
        }
        self._rest, self._left = REST[0], 0
        self._is_trial = False
        self._choice, self._held = RoundChoice("none", 0), 0

    def begin(self) -> None:
        """Take note that another text begins: a drafter that rests is tried soon."""
        self._rest = max(REST[0], self._rest // 4)
        self._left = min(self._left, REST[0] // 2)
        self._held = 0

    def choose(self, find: Callable[[], tuple[int, int]]) -> RoundChoice:
        """Return whose drafts to verify.

        Args:
            find: looks into the text: how many last tokens stood in it before, 0 for none, and how
                many drafts followed them there. Asked where the drafter leaves something to gain.
        """
        if self._held:
            self._held -= 1
            return self._choice
        if not self.times.is_known:
            return self._first()
        verify_ms = self.times.rounds(self._most)
        plain = 1 / verify_ms[0]
        drafted = self._drafted(self.times.drafted(verify_ms), plain)
        copied = RoundChoice("text", 0), 0.0
        if drafted[1] * verify_ms[-1] < ENOUGH * self._most:
            agreed, found = find()
            if agreed:
                length, rate = fastest(self._text[agreed].estimates()[:found], verify_ms)
                copied = RoundChoice("text", length), rate if length else 0.0
        best, rate = max((copied, drafted), key=lambda one: one[1])
        if self._is_trial and best.source == "drafter":
            return best
        if best.source == "drafter" and rate > CLEAR * plain:
            self._choice, self._held = best, HELD
        return best if rate > plain else RoundChoice("none", 0)

    def _first(self) -> RoundChoice:
        """Return the rounds that measure: one with drafts, one without."""
        if not self.times.has_draft:
            return RoundChoice("drafter", self._most)
        return RoundChoice("none", 0)

    def _drafted(self, times: Sequence[float], plain: float) -> tuple[RoundChoice, float]:
        """Return what the drafter's drafts bring a millisecond; nothing while it rests."""
        nothing = RoundChoice("drafter", 0), 0.0
        if self._left > 0:
            self._left -= 1
            self._is_trial = self._left == 0
            return nothing
        odds = self._drafter.estimates()
        length, rate = fastest(odds, times)
        if rate > plain and length:
            self._is_trial = False
            self._rest = REST[0]
            return RoundChoice("drafter", length), rate
        if self._is_trial:
            length, hoped = fastest([max(one, HOPE) for one in odds], times)
            return RoundChoice("drafter", max(length, 1)), max(hoped, plain)
        self._left, self._rest = self._rest, min(2 * self._rest, REST[1])
        return nothing

    def cut(self, confidences: Sequence[float] | None, length: int) -> int:
        """Return how many of a drafter's drafts to verify, knowing how sure it is of each."""
        if confidences is None or not self.times.is_known or self._is_trial:
            return length
        times = self.times.drafted(self.times.rounds(len(confidences)))
        return survival_length(confidences, times)

    def note(
        self,
        source: Source,
        *,
        agreed: int,
        num_verified: int,
        num_accepted: int,
        verify_ms: float,
        draft_ms: float | None = None,
    ) -> None:
        """Learn from a round.

        Args:
            source: of its drafts.
            agreed: as for `choose`.
            num_verified: drafts that were verified.
            num_accepted: those that were kept.
            verify_ms: time of the target's call.
            draft_ms: of the drafter's; None where it had more than a round's new rows to take in.
        """
        self.times.note_verify(num_verified + 1, verify_ms)
        if source == "text":
            self._text[agreed].note(num_verified, num_accepted)
        elif source == "drafter":
            self._drafter.note(num_verified, num_accepted)
            if draft_ms is not None:
                self.times.note_draft(draft_ms)
            if self._is_trial:  # one round tells; `_drafted` lets the drafter rest on
                self._is_trial = False


def fastest(odds: Sequence[float], round_ms: Sequence[float]) -> tuple[int, float]:
    """Return how many drafts to verify for the most tokens a millisecond, and those tokens.

    Args:
        odds: of each draft, the probability that it is kept if those before it are.
        round_ms: time of a round that verifies 0, 1, ... drafts; one entry more than ``odds``.
    """
    survival = expected = 1.0
    best, length = expected / round_ms[0], 0
    for count, one in enumerate(odds, start=1):
        survival *= one
        expected += survival
        if expected / round_ms[count] > best:
            best, length = expected / round_ms[count], count
    return length, best

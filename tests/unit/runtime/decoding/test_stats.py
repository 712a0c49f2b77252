"""Acceptance and times, summed over rounds."""

from __future__ import annotations

import pytest

from draftrt.runtime.decoding.stats import Round, Stats


def drafted(index: int, num_verified: int, num_accepted: int) -> Round:
    return Round(
        index=index,
        token_ids=tuple(range(num_accepted + 1)),
        draft_ids=(1, 2, 3),
        num_verified=num_verified,
        num_accepted=num_accepted,
        draft_s=0.1,
        verify_s=0.3,
        host_s=0.1,
    )


ROUNDS = [
    Round(index=0, token_ids=(5,), verify_s=2.0, host_s=0.5),
    drafted(1, 3, 3),
    drafted(2, 3, 0),
    drafted(3, 1, 1),
    drafted(4, 0, 0),
]


def test_acceptance_counts_drafted_rounds_only() -> None:
    stats = Stats.of(ROUNDS)
    assert (stats.num_rounds, stats.num_tokens) == (4, 9)
    assert stats.acceptance_length == pytest.approx((4 + 1 + 2 + 1) / 4)
    assert stats.acceptance_rate == pytest.approx(4 / 7)


def test_a_position_counts_the_rounds_that_sent_a_draft_there() -> None:
    # Position 0: three rounds sent one, two kept it. Positions 1 and 2: two rounds, one kept.
    assert Stats.of(ROUNDS).acceptance_by_position == pytest.approx((2 / 3, 1 / 2, 1 / 2))


def test_times_are_split_and_the_prefill_stands_apart() -> None:
    stats = Stats.of(ROUNDS)
    assert stats.prefill_s == pytest.approx(2.5)
    assert (stats.draft_s, stats.verify_s, stats.host_s) == pytest.approx((0.4, 1.2, 0.4))
    assert stats.tokens_per_s == pytest.approx(8 / 2.0)


def test_plain_decoding_has_times_and_no_acceptance() -> None:
    stats = Stats.of([ROUNDS[0], Round(index=1, token_ids=(1,), verify_s=0.5)])
    assert (stats.acceptance_length, stats.acceptance_rate) == (0.0, 0.0)
    assert stats.acceptance_by_position == ()
    assert stats.tokens_per_s == pytest.approx(2.0)
    assert stats.summary() == "2 tokens; first after 2500.0 ms, then 2.0 tokens/s"


def test_the_summary_reads_well() -> None:
    assert Stats.of(ROUNDS).summary().splitlines() == [
        "9 tokens; first after 2500.0 ms, then 4.0 tokens/s",
        "acceptance length 2.00 over 4 rounds; by position 0.67 0.50 0.50",
        "a round: draft 100.00 ms, verify 300.00 ms, host 100.00 ms",
    ]


def test_json_holds_every_figure() -> None:
    found = Stats.of(ROUNDS).to_json()
    assert found["acceptance_by_position"] == pytest.approx([2 / 3, 1 / 2, 1 / 2])
    assert found["acceptance_length"] == 2.0
    assert set(found) == {
        "num_tokens",
        "reused_tokens",
        "num_rounds",
        "lookups",
        "plain_rounds",
        "acceptance_length",
        "acceptance_rate",
        "acceptance_by_position",
        "prefill_s",
        "draft_s",
        "verify_s",
        "host_s",
        "tokens_per_s",
    }

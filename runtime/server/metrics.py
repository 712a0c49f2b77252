"""Counters of a server, in Prometheus' text form."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from draftrt.runtime.decoding.stats import Stats

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class Metrics:
    """What a server counts; one registry a server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "draftrt_requests", "Requests", ["path", "status"], registry=self._registry
        )
        self.waiting = Gauge("draftrt_waiting", "Requests that wait", registry=self._registry)
        self._tokens = Counter("draftrt_tokens", "Tokens", ["kind"], registry=self._registry)
        self._rounds = Counter("draftrt_rounds", "Rounds", ["drafts"], registry=self._registry)
        self._drafts = Counter("draftrt_drafts", "Drafts", ["fate"], registry=self._registry)
        self._first = Histogram(
            "draftrt_first_token_seconds",
            "Seconds from the turn of a request to its first token",
            registry=self._registry,
            buckets=SECONDS,
        )
        self._decode = Histogram(
            "draftrt_decode_seconds",
            "Seconds behind the first token",
            registry=self._registry,
            buckets=SECONDS,
        )

    def note(self, prompt_tokens: int, stats: Stats) -> None:
        """Count one answer."""
        for kind, count in (
            ("prompt", prompt_tokens),
            ("reused", stats.reused_tokens),
            ("completion", stats.num_tokens),
        ):
            self._tokens.labels(kind).inc(count)
        for drafts, count in (
            ("drafter", stats.num_rounds - stats.lookups),
            ("text", stats.lookups),
            ("none", stats.plain_rounds),
        ):
            self._rounds.labels(drafts).inc(count)
        kept = sum(stats.accepted)
        self._drafts.labels("kept").inc(kept)
        self._drafts.labels("dropped").inc(sum(stats.verified) - kept)
        self._first.observe(stats.prefill_s)
        self._decode.observe(stats.decode_s)

    def text(self, waiting: int) -> bytes:
        """Return all of it."""
        self.waiting.set(waiting)
        return generate_latest(self._registry)

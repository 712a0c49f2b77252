"""A target and its drafter, as a user meets them: text in, text out.

    import draftrt
    with draftrt.load("bundle") as pair:
        for chunk in pair.stream("The quick brown", DecodeOptions(max_tokens=64)):
            print(chunk, end="", flush=True)

A batch of one is the design point; one pair decodes one text at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.closing import Closing
from draftrt.runtime.chat import Message, render
from draftrt.runtime.decode import Decoder
from draftrt.runtime.drafter import Drafter
from draftrt.runtime.options import DecodeOptions
from draftrt.runtime.schedule import Costs
from draftrt.runtime.stats import FinishReason, Round, Stats
from draftrt.runtime.target import Target
from draftrt.runtime.text import StopStrings, TextStream, load_tokenizer

Prompt = str | Sequence[Message] | Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one round added; ``str()`` of it is the text.

    Attributes:
        text: whole code points only; empty while one is incomplete or a stop string may begin.
        token_ids: tokens of the round, up to the one that completed a stop string.
        round: the round itself.
        finish: why the text ends here; None when it goes on.
    """

    text: str
    token_ids: tuple[int, ...]
    round: Round
    finish: FinishReason | None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished text.

    Attributes:
        text: the new text, without stop string.
        prompt_ids: ids of the prompt.
        token_ids: new ids, a stop token included.
        finish: ``stop`` or ``length``.
        stats: acceptance and times.
    """

    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish: FinishReason
    stats: Stats


class Pair(Closing):
    """A loaded bundle with its target; a context manager.

    Attributes:
        target: the target.
        drafter: the drafter; None for a target exported alone, which decodes plainly.
        decoder: the loop with both.
        tokenizer_dir: folder of the tokenizer and its chat template.
        stop_ids: the target's own end-of-text ids.
        runs_as: what runs it, in words; the name under which the bundle keeps `costs`.
        costs: times measured for this way to run the bundle; None where there are none.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        tokenizer_dir: Path,
        stop_ids: frozenset[int],
        *,
        runs_as: str = "",
        costs: Costs | None = None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.stop_ids = stop_ids
        self.runs_as = runs_as
        self.costs = costs
        self.tokenizer_dir = tokenizer_dir
        self._tokenizer = load_tokenizer(tokenizer_dir)
        self.decoder = Decoder(target, drafter, costs)
        self._plain = Decoder(target)

    def encode(
        self, prompt: str | Sequence[Message], chat_variables: Mapping[str, Any] | None = None
    ) -> tuple[int, ...]:
        """Return the ids of a prompt: a text as it is, or messages through the chat template.

        Args:
            prompt: a text, or messages with ``role`` and ``content``.
            chat_variables: further variables of the chat template, as ``enable_thinking``.

        Raises:
            BundleError: the target has no chat template, or it refuses the messages.
        """
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(prompt).ids)
        text = render(self.tokenizer_dir, prompt, chat_variables or {})
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def rounds(
        self,
        prompt_ids: Sequence[int],
        options: DecodeOptions | None = None,
        *,
        speculate: bool = True,
    ) -> Generator[Round, None, None]:
        """Decode ids and return the rounds; closing the iterator at any time is harmless.

        Args:
            prompt_ids: at least one token.
            options: see `DecodeOptions`.
            speculate: False decodes with the target alone.

        Raises:
            FeedError: prompt and wanted tokens do not fit the caches.
            UnsupportedError: a confidence threshold without a confidence head.
        """
        options = options or DecodeOptions()
        if options.stop_ids is None:
            options = replace(options, stop_ids=self.stop_ids)
        return (self.decoder if speculate else self._plain).decode(prompt_ids, options)

    def stream(
        self,
        prompt: Prompt,
        options: DecodeOptions | None = None,
        *,
        stop: Sequence[str] = (),
        speculate: bool = True,
    ) -> Generator[Chunk, None, None]:
        """Decode and return the text round by round; closing the iterator at any time is harmless.

        Args:
            prompt: a text, chat messages, or ids.
            options: see `DecodeOptions`.
            stop: strings that end the text, themselves not part of it.
            speculate: False decodes with the target alone.

        Raises:
            FeedError: prompt and wanted tokens do not fit the caches.
            UnsupportedError: a confidence threshold without a confidence head.
            BundleError: messages without a chat template.
        """
        options = options or DecodeOptions()
        rounds = self.rounds(self._ids(prompt), options, speculate=speculate)
        return _chunks(rounds, TextStream(self._tokenizer), StopStrings(stop), options.min_tokens)

    def generate(
        self,
        prompt: Prompt,
        options: DecodeOptions | None = None,
        *,
        stop: Sequence[str] = (),
        speculate: bool = True,
    ) -> Completion:
        """Decode to the end; arguments and errors as in `stream`."""
        prompt_ids = self._ids(prompt)
        chunks = list(self.stream(prompt_ids, options, stop=stop, speculate=speculate))
        return Completion(
            text="".join(chunk.text for chunk in chunks),
            prompt_ids=prompt_ids,
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            finish=chunks[-1].finish or "length",
            stats=Stats.of(chunk.round for chunk in chunks),
        )

    def close(self) -> None:
        """Free target and drafter."""
        if self.drafter is not None:
            self.drafter.close()
        self.target.close()

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return self.encode(prompt)
        messages = [entry for entry in prompt if isinstance(entry, Mapping)]
        if not messages:
            return tuple(int(entry) for entry in prompt if not isinstance(entry, Mapping))
        if len(messages) < len(prompt):
            raise TypeError("a prompt is a text, messages, or ids, not a mixture of them")
        return self.encode(messages)


def _chunks(
    rounds: Generator[Round, None, None], text: TextStream, stops: StopStrings, min_tokens: int
) -> Generator[Chunk, None, None]:
    num_new = 0
    with closing(rounds):
        for one in rounds:
            kept, pieces = [], []
            for token in one.token_ids:  # one by one, to know which token completes a stop string
                num_new += 1
                kept.append(token)
                piece = text.push([token])
                pieces.append(stops.push(piece) if num_new > min_tokens else piece)
                if stops.found:
                    break
            if one.finish and not stops.found:
                pieces += [stops.push(text.flush()), stops.flush()]
            finish: FinishReason | None = "stop" if stops.found else one.finish
            yield Chunk(text="".join(pieces), token_ids=tuple(kept), round=one, finish=finish)
            if finish:
                return

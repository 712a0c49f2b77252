"""A target and its drafter, as a user meets them: text in, text out.

    import draftrt
    with draftrt.load("bundle") as pair:
        for chunk in pair.stream("The quick brown", DecodeOptions(max_tokens=64)):
            print(chunk, end="", flush=True)

A batch of one is the design point; one pair decodes one text at a time. Calls of `Pair.generate`
from several threads wait for each other, each for the whole of the one before. A stream holds
nothing between two of its pieces, so one that is left unread blocks nobody: a later call, of
whatever thread and kind, takes the caches, and the older stream ends with a `BusyError` when it is
read on. What the caches hold of a later prompt is not computed again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftrt.errors import OptionError
from draftrt.lifecycle import Closing
from draftrt.manifest import Costs
from draftrt.runtime.decoding.drafter import DraftSession
from draftrt.runtime.decoding.grammar import Grammar, GrammarTokenizer
from draftrt.runtime.decoding.loop import DecodeLoop
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.decoding.reuse import Holdings
from draftrt.runtime.decoding.stats import FinishReason, Round, Stats
from draftrt.runtime.decoding.turns import InTurns, Turn
from draftrt.runtime.prefix import Models, load_prefix, save_prefix
from draftrt.runtime.prompts import encode_prompt, no_variables
from draftrt.runtime.targets.base import Target
from draftrt.runtime.text.chat import ChatTemplate, Message
from draftrt.runtime.text.stream import StopStrings, TextStream, load_tokenizer
from draftrt.runtime.text.token_ids import checked_ids, is_messages

Prompt = str | Sequence[Message] | Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one round added; ``str()`` of it is the text.

    Attributes:
        text: what is final; empty while a code point is incomplete or a stop string may begin.
        pieces: the same, what each of ``token_ids`` made final.
        token_ids: tokens of the round, up to the one at which a stop string was complete.
        round: the round itself, its tokens cut there too.
        finish: why the text ends here; None when it goes on.
    """

    text: str
    pieces: tuple[str, ...]
    token_ids: tuple[int, ...]
    round: Round
    finish: FinishReason | None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished text.

    Attributes:
        text: what prompt and new ids are as a text, less the prompt's; without stop string.
        prompt_ids: ids of the prompt.
        token_ids: new ids, a stop token and those of a stop string included.
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
        template: the tokenizer's chat template.
        stop_ids: the target's own end-of-text ids.
        runs_as: what runs it, in words; the name under which the bundle keeps `costs`.
        costs: times measured for this way to run the bundle; None where there are none.
    """

    def __init__(
        self,
        target: Target,
        drafter: DraftSession | None,
        tokenizer_dir: Path,
        stop_ids: frozenset[int],
        *,
        runs_as: str = "",
        costs: Costs | None = None,
        num_ids: int | None = None,
        graphs: str = "",
    ) -> None:
        """Put the parts together; see `draftrt.load`.

        Args:
            target: the target.
            drafter: the drafter, or None.
            tokenizer_dir: folder of the tokenizer.
            stop_ids: the target's own end-of-text ids.
            runs_as: what runs it, in words.
            costs: times measured for this way to run the bundle.
            num_ids: ids that the target's table has rows for; None leaves their range unchecked.
            graphs: hash of what the graphs compute, for saved prefixes.
        """
        self.target = target
        self.drafter = drafter
        self.stop_ids = stop_ids
        self._models = Models(target, drafter, graphs)
        self._num_ids = num_ids
        self.runs_as = runs_as
        self.costs = costs
        self.template = ChatTemplate(tokenizer_dir)
        self._tokenizer = load_tokenizer(tokenizer_dir)
        self._held = Holdings()
        self.decoder = DecodeLoop(target, drafter, costs, held=self._held)
        self._plain = DecodeLoop(target, held=self._held)
        self._turn = Turn()

    def encode(
        self, prompt: str | Sequence[Message], template_variables: Mapping[str, Any] | None = None
    ) -> tuple[int, ...]:
        """Return the ids of a prompt: a text as it is, or messages through the chat template.

        Args:
            prompt: a text, or messages with ``role`` and ``content``.
            template_variables: further variables of the chat template, as ``enable_thinking``.

        Raises:
            BundleError: the target has no chat template, or it refuses the messages; or the
                tokenizer cannot encode the text, or gives ids that the target has not.
            FeedError: neither a text nor messages, a text that is no valid Unicode, variables that
                are no JSON data, or variables for a text.
        """
        return encode_prompt(
            self._tokenizer, self.template, prompt, template_variables, num_ids=self._num_ids
        )

    def token_name(self, token: int) -> str:
        """Return a token as the tokenizer writes it, as ``<|im_end|>``, or its number."""
        return self._tokenizer.id_to_token(token) or str(token)

    def token_text(self, token: int) -> str:
        """Return what a token alone is as a text."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def rounds(
        self,
        prompt_ids: Sequence[int],
        options: DecodeOptions | None = None,
        *,
        speculate: bool = True,
        grammar: Grammar | None = None,
    ) -> Generator[Round, None, None]:
        """Decode ids and return the rounds; closing the iterator at any time is harmless.

        Args:
            prompt_ids: at least one token.
            options: see `DecodeOptions`.
            speculate: False decodes with the target alone.
            grammar: what the output must obey; None: anything.

        Raises:
            FeedError: no ids of the target, or prompt and wanted tokens do not fit the caches.
            OptionError: options of a wrong kind, or stop ids that the target has not.
            UnsupportedError: a confidence threshold without a confidence head.
            BusyError: while it is read: a later call has taken the caches.
        """
        rounds = self._rounds(prompt_ids, options, speculate=speculate, grammar=grammar)
        return InTurns(rounds, self._turn)

    def stream(
        self,
        prompt: Prompt,
        options: DecodeOptions | None = None,
        *,
        stop: Sequence[str] = (),
        speculate: bool = True,
        grammar: Grammar | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> Generator[Chunk, None, None]:
        """Decode and return the text round by round; closing the iterator at any time is harmless.

        Args:
            prompt: a text, taken as it is; chat messages, through the chat template; or ids.
            options: see `DecodeOptions`.
            stop: strings that end the text, themselves not part of it.
            speculate: False decodes with the target alone.
            grammar: what the output must obey; None: anything. The output ends where the grammar
                allows nothing more, or with a stop token where it is complete.
            template_variables: as in `encode`.

        Raises:
            FeedError: no prompt (see `token_ids`), or it and the wanted tokens do not fit the
                caches.
            OptionError: options or stop strings of a wrong kind, or a grammar that does not
                compile.
            UnsupportedError: a confidence threshold without a confidence head.
            BundleError: messages without a chat template.
            BusyError: while it is read: a later call has taken the caches.
        """
        prompt_ids = self._ids(prompt, template_variables)
        chunks = self._chunks(prompt_ids, options, stop, speculate=speculate, grammar=grammar)
        return InTurns(chunks, self._turn)

    def generate(
        self,
        prompt: Prompt,
        options: DecodeOptions | None = None,
        *,
        stop: Sequence[str] = (),
        speculate: bool = True,
        grammar: Grammar | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Decode to the end; arguments and errors as in `stream`.

        Calls of several threads wait for each other.
        """
        prompt_ids = self._ids(prompt, template_variables)
        steps = self._chunks(prompt_ids, options, stop, speculate=speculate, grammar=grammar)
        with self._turn, closing(steps):
            chunks = list(steps)
        return Completion(
            text="".join(chunk.text for chunk in chunks),
            prompt_ids=prompt_ids,
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            finish=chunks[-1].finish or "length",
            stats=Stats.of(chunk.round for chunk in chunks),
        )

    def save_prefix(self, path: Path | str) -> int:
        """Keep what the caches hold of the last text in a file, and return how many tokens.

        ``load(..., prefix=path)`` begins with them: a prompt that begins alike computes the rest.
        For a system prompt: generate one token behind it, then save.

        Raises:
            BundleError: nothing was decoded yet, or the file cannot be written.
            UnsupportedError: target or drafter do not run on ONNX Runtime.
        """
        with self._turn:
            return save_prefix(Path(path), self._models, self._held)

    def load_prefix(self, path: Path | str) -> int:
        """Take the caches of a file of `save_prefix`; return how many tokens they hold.

        Raises:
            BundleError: no such file, a damaged one, or one of another bundle.
            UnsupportedError: target or drafter do not run on ONNX Runtime.
        """
        with self._turn:
            return load_prefix(Path(path), self._models, self._held)

    def close(self) -> None:
        """Free target, drafter and template, after the call that runs in another thread."""
        self.template.close()
        with self._turn:
            if self.drafter is not None:
                self.drafter.close()
            self.target.close()

    def _ids(self, prompt: Prompt, variables: Mapping[str, Any] | None) -> tuple[int, ...]:
        if isinstance(prompt, str) or is_messages(prompt):
            return self.encode(prompt, variables)  # type: ignore[arg-type]
        no_variables(variables)
        return checked_ids(prompt, self._num_ids)

    def _rounds(
        self,
        prompt_ids: Any,
        options: DecodeOptions | None,
        *,
        speculate: bool,
        grammar: Grammar | None,
    ) -> Generator[Round, None, None]:
        """Return the rounds of checked ids and options, to be read under the turn."""
        if options is not None and not isinstance(options, DecodeOptions):
            raise OptionError(f"options are {options!r:.200}, expected DecodeOptions(...)")
        if not isinstance(speculate, bool):
            raise OptionError(f"speculate is {speculate!r:.200}, expected True or False")
        ids = checked_ids(prompt_ids, self._num_ids)
        options = options or DecodeOptions()
        if options.stop_ids is None:
            options = replace(options, stop_ids=self.stop_ids)
        elif self._num_ids is not None and max(options.stop_ids, default=0) >= self._num_ids:
            raise OptionError(
                f"stop_ids has {max(options.stop_ids)}, expected ids below {self._num_ids}, the "
                "rows of the target's table"
            )
        matcher = None
        if grammar is not None:
            matcher = self._grammar_tokenizer.matcher(grammar, options.stop_ids or ())
        return (self.decoder if speculate else self._plain).decode(ids, options, matcher)

    @cached_property
    def _grammar_tokenizer(self) -> GrammarTokenizer:
        return GrammarTokenizer(self.template.folder / "tokenizer.json", self.stop_ids)

    def _chunks(
        self,
        prompt_ids: tuple[int, ...],
        options: DecodeOptions | None,
        stop: Sequence[str],
        *,
        speculate: bool,
        grammar: Grammar | None,
    ) -> Generator[Chunk, None, None]:
        rounds = self._rounds(prompt_ids, options, speculate=speculate, grammar=grammar)
        text = TextStream(self._tokenizer, prompt_ids)
        return _chunks(rounds, text, StopStrings(stop), options.min_tokens if options else 0)


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
                pieces[-1] += stops.push(text.flush()) + stops.flush()
            finish: FinishReason | None = "stop" if stops.found else one.finish
            told = None if one.logprobs is None else one.logprobs[: len(kept)]
            cut = replace(one, token_ids=tuple(kept), finish=finish, logprobs=told)
            yield Chunk(
                text="".join(pieces),
                pieces=tuple(pieces),
                token_ids=cut.token_ids,
                round=cut,
                finish=finish,
            )
            if finish:
                return

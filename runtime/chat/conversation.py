"""What was said so far, as the prompt of the next answer."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from draftrt.errors import FeedError
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.pair import Chunk, Pair
from draftrt.runtime.prompts import Form
from draftrt.runtime.text.chat import Message


@dataclass(slots=True)
class Conversation:
    """Messages by turns; without a chat template, one text that goes on.

    Attributes:
        form: how prompts are written out, settled; its message of the system comes first.
        messages: of user and assistant, the oldest first.
        speculate: False answers with the target alone.
    """

    form: Form
    messages: list[Message] = field(default_factory=list)
    speculate: bool = True

    def reset(self) -> None:
        """Forget what was said; the message of the system stays."""
        self.messages.clear()

    def prompt_ids(self, pair: Pair) -> tuple[int, ...]:
        """Return the ids of everything that was said.

        Raises:
            BundleError: the template refuses the messages.
        """
        if not self.form.is_chat:
            return pair.encode("".join(str(one["content"]) for one in self.messages))
        system = self.form.system
        first = [] if system is None else [{"role": "system", "content": system}]
        return pair.encode([*first, *self.messages], self.form.variables)

    def answer(
        self, pair: Pair, text: str, options: DecodeOptions, stop: Sequence[str] = ()
    ) -> Generator[Chunk, None, None]:
        """Say something and return the answer as it comes; what came is kept, however it ends.

        Args:
            pair: who answers.
            text: what is said.
            options: as many of its tokens are decoded as there is room for.
            stop: strings that end the answer.

        Raises:
            FeedError: no room for another answer; what was said is taken back.
            DraftrtError: as of `draftrt.runtime.pair.Pair.stream`; the same.
        """
        self._add("user", text)
        said: list[str] = []
        try:
            ids = self.prompt_ids(pair)
            room = pair.decoder.most_tokens - len(ids)
            if room < 1:
                raise FeedError(
                    f"the conversation has {len(ids)} tokens, expected at most "
                    f"{len(ids) + room - 1}: {pair.decoder.held}",
                    hint="/reset forgets it; or export with a larger --max-context",
                )
            most = min(room, options.max_tokens or room)
            wanted = replace(options, max_tokens=most, min_tokens=min(options.min_tokens, most))
            for chunk in pair.stream(ids, wanted, stop=stop, speculate=self.speculate):
                said.append(chunk.text)
                yield chunk
        finally:
            self._keep("".join(said))

    def _keep(self, answer: str) -> None:
        """Keep an answer; without one what was said is taken back: templates want both."""
        if answer:
            self._add("assistant", answer)
        else:
            self.messages.pop()

    def _add(self, role: str, text: str) -> None:
        self.messages.append({"role": role, "content": text if self.form.is_chat else f"{text}\n"})

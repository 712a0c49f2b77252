"""Recorded texts for the doctor's tests, made without an export, and drafters read wrongly.

A trained pair decodes with the PyTorch modules. A toy drafter has no target that it was trained on;
its text is what it drafts itself, so that it is right in every round and any change makes it worse.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from draftrt.export.checkpoint.decoder import read_decoder
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.checkpoint.target import TargetCheckpoint, read_target
from draftrt.export.models.decoder import Decoder
from draftrt.export.weights.tensors import draft_tensors, target_tensors
from draftrt.spec import DrafterSpec, Precision
from draftrt.validate.doctor.recording import ModuleStates, Text, with_states
from draftrt.validate.doctor.replay import Replay, build_module, widened
from draftrt.validate.doctor.suspects import Setting, Suspect, special_tokens, suspects_of
from draftrt.validate.doctor.trial import Case, Tried, try_suspects
from draftrt.validate.rounds.module import ReferenceRounds

ROWS = 256


@dataclass
class Recorded:
    """Texts with the drafter that they were recorded for.

    Attributes:
        spec: the drafter as it is right.
        weights: its weights.
        texts: recorded texts; their rounds are set by `plant`.
        setting: what suspects are taken from.
    """

    spec: DrafterSpec
    weights: dict[str, Any]
    texts: list[Text]
    setting: Setting = field(default_factory=lambda: Setting(num_layers=6, longest=ROWS))

    def plant(self, wrong: Suspect) -> Case:
        """Return a case in which the drafter is a wrong one: its own rounds over the texts."""
        texts, base = [], []
        for text, counts in zip(
            self.texts, Replay(wrong, self.weights, self.texts).walk(), strict=True
        ):
            anchors = np.cumsum([text.num_prompt, *(count + 1 for count in counts[:-1])])
            texts.append(replace(text, anchors=tuple(anchors.tolist()), accepted=tuple(counts)))
            base.append(counts)
        return Case(texts=texts, weights=self.weights, base=base)

    def try_all(self, wrong: Suspect) -> list[Tried]:
        """Examine a wrong drafter with all the suspects that its own description gives."""
        suspects = suspects_of(wrong.spec, self.setting)
        if wrong.shift:  # the suspects are taken from the right positions; here the wrong are held
            suspects = [one for one in suspects if not one.shift]
            back = Suspect(fact="position", change="back", spec=wrong.spec)
            suspects = [replace(one, shift=wrong.shift) for one in suspects] + [back]
        return try_suspects(self.plant(wrong), suspects)


def as_it_is(spec: DrafterSpec) -> Suspect:
    return Suspect(fact="", change="", spec=spec)


def trained_pair(assets: Path, name: str, prompts: list[str], num_new: int) -> Recorded:
    """Decode prompts greedily with the target's module; all hidden states of every layer."""
    folder = assets / "tiny-target"
    target = read_target(folder)
    loaded = load_drafter(assets / name, target)
    tensors = draft_tensors(loaded.spec, loaded.tensors, Precision.FP32, ROWS)
    layers = tuple(range(-1, target.spec.num_layers))
    decoder = read_decoder(target)
    contents = target_tensors(decoder, folder, Precision.FP32, ROWS)
    module = Decoder(
        decoder, {key: one.source.read().float() for key, one in contents.items()}, taps=layers
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [greedy(module, tokenizer.encode(prompt).ids, num_new) for prompt in prompts]
    states = ModuleStates(module)
    return Recorded(
        loaded.spec,
        widened({key: one.source.read() for key, one in tensors.items()}),
        [with_states(text, states, layers) for text in texts],
        Setting(
            num_layers=target.spec.num_layers,
            longest=max(len(text.ids) for text in texts),
            tokens=special_tokens(folder / "tokenizer.json"),
            theta=decoder.rope.theta,
        ),
    )


def greedy(module: Decoder, prompt: list[int], num_new: int) -> Text:
    """Decode one token at a time, with nothing of the runtime."""
    spec = module.spec
    shape = (1, spec.num_kv_heads, ROWS, spec.head_dim)
    caches = [torch.zeros(shape) for _ in range(2 * spec.num_layers)]
    ids, fed = list(prompt), 0
    with torch.no_grad():
        while len(ids) < len(prompt) + num_new:
            last = torch.tensor([len(ids) - fed - 1])
            out = module(torch.tensor([ids[fed:]]), torch.tensor([fed]), last, *caches)
            fed, caches = len(ids), list(out[3:])
            ids.append(int(out[0][0, -1]))
    return Text(ids=tuple(ids), num_prompt=len(prompt), anchors=(), drafted=(), accepted=())


def own_drafts(
    folder: Path,
    target: TargetCheckpoint,
    num_texts: int,
    num_new: int,
    wrong: Suspect | None = None,
) -> Recorded:
    """Let a toy drafter write texts: all its drafts, and a random token behind each block.

    Args:
        folder: its checkpoint.
        target: gives sizes and tables.
        num_texts: texts to write.
        num_new: at least so many tokens each.
        wrong: what the drafter really does where that is not in its checkpoint.
    """
    loaded = load_drafter(folder, target)
    spec = loaded.spec
    tensors = draft_tensors(spec, loaded.tensors, Precision.FP32, ROWS)
    weights = widened({key: one.source.read() for key, one in tensors.items()})
    truth = wrong or as_it_is(spec)
    module = build_module(truth, weights, ROWS)
    rng = np.random.default_rng(3)
    texts = [_written(module, truth, rng, num_new) for _ in range(num_texts)]
    setting = Setting(
        num_layers=6, longest=max(len(t.ids) for t in texts), has_d2t="d2t" in weights
    )
    return Recorded(spec, weights, texts, setting)


def _written(module: Any, truth: Suspect, rng: np.random.Generator, num_new: int) -> Text:
    spec, size = truth.spec, truth.spec.target_hidden_size
    states = {k: rng.standard_normal((ROWS, size)).astype(np.float32) for k in range(-1, 6)}
    normed = {k: (3 * value**3).astype(np.float32) for k, value in states.items()}
    vocabulary = spec.target_vocab_size or spec.input_vocab_size
    ids = rng.integers(0, vocabulary - 8, size=8).tolist()
    blank = Text(
        ids=(), num_prompt=7, anchors=(), drafted=(), accepted=(), states=states, normed=normed
    )
    rounds, length = ReferenceRounds(module, Precision.FP32, ROWS), 0
    while len(ids) < num_new + 8:
        anchor = len(ids) - 1
        features = blank.features(spec.target_layer_ids, truth.normed, length, anchor)
        out = rounds.run(
            {
                "anchor": np.array([ids[anchor]]),
                "target_hidden": features,
                "context_length": np.array([length]),
            }
        )
        length = anchor
        ids += [*out["draft_ids"][0].tolist(), int(rng.integers(0, vocabulary - 8))]
    return replace(blank, ids=tuple(ids))

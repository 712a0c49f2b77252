"""Tokens a second on the tiny pair: with the drafter, without, and by transformers, side by side.

python -m tests.assets.measure_pair BUNDLE

Every tenth prompt, 96 tokens, greedy, one thread; the three take turns at each prompt, in one
process, and their tokens are compared.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import load
from draftrt.runtime.pair import Pair

HERE = Path(__file__).resolve().parent
COUNT = 96
OPTIONS = DecodeOptions(max_tokens=COUNT, stop_ids=frozenset())


def by_transformers(model: Qwen3ForCausalLM, ids: list[int]) -> list[int]:
    """Decode with transformers' own greedy loop."""
    with torch.no_grad():
        out = model.generate(
            torch.tensor([ids]),
            max_new_tokens=COUNT,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens: list[int] = out[0, len(ids) :].tolist()
    return tokens


def measure(pair: Pair, prompts: list[str]) -> None:
    """Decode every prompt in each way and print the rates."""
    model = Qwen3ForCausalLM.from_pretrained(HERE / "tiny-target")
    model.train(False)
    ways: dict[str, Callable[[list[int]], list[int]]] = {
        "speculative": lambda ids: [t for one in pair.rounds(ids, OPTIONS) for t in one.token_ids],
        "plain": lambda ids: [
            t for one in pair.rounds(ids, OPTIONS, speculate=False) for t in one.token_ids
        ],
        "transformers": lambda ids: by_transformers(model, ids),
    }
    seconds, num_same = dict.fromkeys(ways, 0.0), 0
    for prompt in prompts:
        ids = list(pair.encode(prompt))
        outputs = []
        for name, way in ways.items():
            started = time.perf_counter()
            outputs.append(way(ids))
            seconds[name] += time.perf_counter() - started
        num_same += outputs[0] == outputs[1] == outputs[2]
    for name, taken in seconds.items():
        ratio = seconds["transformers"] / taken
        print(f"{name}: {len(prompts) * COUNT / taken:.0f} tokens/s, {ratio:.1f} x transformers")
    print(f"same tokens in all three ways: {num_same} of {len(prompts)} prompts")


if __name__ == "__main__":
    torch.set_num_threads(1)
    lines = (HERE / "prompts.txt").read_text(encoding="utf-8").splitlines()
    with load(sys.argv[1]) as loaded:
        measure(loaded, [line for line in lines if line][::10])

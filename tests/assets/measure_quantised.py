"""What quantised weights cost and give on a tiny pair, side by side with float32.

python -m tests.assets.measure_quantised tests/assets/tiny-dflash [SCHEME ...]

Every tenth prompt, 96 tokens, greedy, one thread; the bundles take turns at each prompt, in one
process. The drafter alone is quantised, and drafts for the same float32 target: what is lost is
acceptance. A last run quantises the target too.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from draftrt.bundle import Bundle
from draftrt.export.check.reference import module_from_bundle
from draftrt.export.options import ExportOptions
from draftrt.export.pipeline import export_bundle
from draftrt.quantization import parse_quantization
from draftrt.runtime.decoding.options import DecodeOptions
from draftrt.runtime.load import load
from draftrt.runtime.pair import Pair
from draftrt.runtime.prompts import Form, asked
from draftrt.spec import Precision
from draftrt.tolerances import IDS
from draftrt.validate.parity.parity import ParityReport, check_parity
from draftrt.validate.rounds.module import ReferenceRounds
from draftrt.validate.rounds.plan import encode_prompts, real_rounds

HERE = Path(__file__).resolve().parent
COUNT = 96
OPTIONS = DecodeOptions(max_tokens=COUNT, stop_ids=frozenset())
SCHEMES = (
    "",
    "draft:int8",
    "draft:int4",
    "draft:int4 draft:embedding=int8",
    "draft:fp8",
    "int8",
    "int4",
)
BASE = SCHEMES[0]


@dataclass(slots=True)
class Speed:
    """Tokens, rounds and seconds of all prompts, and the tokens themselves."""

    seconds: float = 0.0
    rounds: int = 0
    tokens: list[int] | None = None


def export_all(draft: Path, schemes: Sequence[str], folder: Path) -> dict[str, Path]:
    """Export a bundle for each scheme."""
    made = {}
    for index, scheme in enumerate(schemes):
        options = ExportOptions(quantization=parse_quantization(scheme.split()))
        made[scheme] = export_bundle(draft, HERE / "tiny-target", folder / str(index), options)
    return made


def decode_all(bundles: dict[str, Path], prompts: Sequence[str]) -> dict[str, Speed]:
    """Decode every prompt with each bundle in turn."""
    pairs: dict[str, Pair] = {scheme: load(path) for scheme, path in bundles.items()}
    speeds = {scheme: Speed(tokens=[]) for scheme in bundles}
    for prompt in prompts:
        for scheme, pair in pairs.items():
            ids = pair.encode(prompt)
            started = time.perf_counter()
            rounds = list(pair.rounds(ids, OPTIONS))
            speed = speeds[scheme]
            speed.seconds += time.perf_counter() - started
            speed.rounds += len(rounds) - 1  # the first is the prompt's own token
            assert speed.tokens is not None
            speed.tokens += [token for one in rounds for token in one.token_ids]
    for pair in pairs.values():
        pair.target.close()
    return speeds


def loss(base: Path, path: Path, prompts: Sequence[str]) -> tuple[float, float]:
    """Compare a bundle's own integers with float32 weights, in PyTorch, on the target's features.

    Returns:
        The share of equal ids before the first that differs in a round, and the mean
        Kullback-Leibler divergence of the base logits in nats.
    """
    modules = []
    for one in (Bundle.open(base), Bundle.open(path)):
        module = module_from_bundle(one, extra_outputs=("base_logits",))
        modules.append(ReferenceRounds(module, Precision.FP32, one.graph().max_context))
    equal, total, divergences = 0, 0, []
    bundle, asking = Bundle.open(base), list(map(asked, prompts))
    ids, _ = encode_prompts(bundle, asking, Form(is_chat=False), lambda line: None)
    for feeds in real_rounds(bundle, asking, ids, 8):
        want, got = (module.run(feeds) for module in modules)
        equal += int((want["draft_ids"] == got["draft_ids"]).sum())
        total += want["draft_ids"].size
        p, q = (torch.from_numpy(one["base_logits"]).log_softmax(dim=-1) for one in (want, got))
        divergences.append(float((p.exp() * (p - q)).sum(dim=-1).mean()))
    return equal / total, float(np.mean(divergences))


def worst_of(report: ParityReport) -> str:
    """The largest difference of the graph as it is written, and whether all is the same."""
    worst = max(
        finding.worst
        for named in report.findings
        for name, finding in named.items()
        if name in report.limits and name not in IDS and not name.endswith("as run")
    )
    return f"{worst:.0e}" if report.is_same else "different"


def main(draft: Path, schemes: Sequence[str]) -> None:
    """Export, compare, decode and print a table."""
    lines = (HERE / "prompts.txt").read_text(encoding="utf-8").splitlines()
    prompts = [line for line in lines if line][::10]
    with tempfile.TemporaryDirectory() as folder:
        bundles = export_all(draft, schemes, Path(folder))
        speeds = decode_all(bundles, prompts)
        base = speeds[BASE]
        print("| weights | draft data | parity | ids | KL | acceptance | tokens/s | same tokens |")
        print("|---|---|---|---|---|---|---|---|")
        for scheme, path in bundles.items():
            speed, size = speeds[scheme], (path / "draft.onnx.data").stat().st_size
            share, divergence = loss(bundles[BASE], path, prompts[:8])
            length = len(prompts) * (COUNT - 1) / speed.rounds
            print(
                f"| {scheme or 'float32'} | {size / 1e6:.2f} MB | {worst_of(check_parity(path))} "
                f"| {share:.1%} | {divergence:.1e} | {length:.2f} "
                f"| {len(prompts) * COUNT / speed.seconds:.0f}, "
                f"{base.seconds / speed.seconds:.2f} × "
                f"| {'yes' if speed.tokens == base.tokens else 'no'} |"
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), (sys.argv[2:] and (BASE, *sys.argv[2:])) or SCHEMES)

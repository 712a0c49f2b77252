"""The tables of docs/formats.md, made from the readers' own tables.

    python -m tests.unit.export.formats_page

writes them into the page; a test fails while page and code differ.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from draftrt.export.checkpoint import names as tensor_names
from draftrt.export.checkpoint.claims import QUANTISED
from draftrt.export.checkpoint.drafter import load_drafter
from draftrt.export.config.drafter import read_config
from draftrt.export.config.family import ARCHITECTURES
from draftrt.export.config.meaning import TOPICS
from draftrt.export.config.reader import Facts
from draftrt.export.models.shapes import tensor_shapes
from draftrt.spec import Backbone
from tests.toys.formats import drafter_arrays, drafter_config
from tests.toys.models import Kind, ToyDrafter
from tests.toys.toys import write_drafter
from tests.unit.export.published import ROWS as PUBLISHED
from tests.unit.export.support_rows import GOLDEN, REFUSED, UNTRIED, target_of

BODY = "transformer_layer_config."
KINDS = (
    Kind.ZLAB_DFLASH2,
    Kind.DEEPSPEC_DSPARK,
    Kind.SPECULATORS_DSPARK,
    Kind.DEEPSPEC_GEMMA4,
)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def code(*words: str) -> str:
    return ", ".join(f"`{word}`" for word in words)


def alternatives(pattern: str) -> list[tuple[str, str]]:
    """Spell out a name pattern: each reading, with what its first group holds there."""
    text = pattern.strip("^").removesuffix("$")
    whole = text.startswith("(") and text.endswith(")")
    text = text[1:-1] if whole else text
    pieces = re.split(r"(\((?:\?:)?[^()]*\)|\[[^]]*\])", text)
    options = [
        [c for word in piece.strip("()").removeprefix("?:").split("|") for c in brackets(word)]
        for piece in pieces
    ]
    read = ["".join(parts).replace("\\.", ".") for parts in itertools.product(*options)]
    groups = next((o for o, p in zip(options, pieces, strict=True) if p.startswith("(")), [""])
    return [(name, name if whole else groups[i % len(groups)]) for i, name in enumerate(read)]


def brackets(word: str) -> list[str]:
    """Spell out `[12]` in a word."""
    match = re.search(r"\[([^]]*)\]", word)
    if match is None:
        return [word]
    return [word.replace(match.group(0), letter, 1) for letter in match.group(1)]


def rename_rows() -> Iterator[list[str]]:
    for pattern, canonical, whose in tensor_names.RENAMES:
        for name, group in alternatives(pattern):
            meant = canonical.replace(r"\1", group)
            star = "" if pattern.endswith("$") else "*"
            assert tensor_names.canonical_name(name + star) == meant + star, (pattern, name)
            yield [code(name + star), code(meant + star), whose]
    for fusion, parts in tensor_names.FUSED:
        name = fusion.pattern.replace(r"\d+", "i").replace("\\.", ".").strip("^$")
        name = name.replace("(weight|bias)", "*").replace("(", "").replace(")", "")
        stem = name.rpartition(".")[0].rpartition(".")[0]
        yield [code(name), code(*(f"{stem}.{part}.*" for part in parts)) + " (rows)", "fused"]


def tensor_rows() -> list[list[str]]:
    """Canonical names with sizes in letters, from drafters whose sizes are all different."""
    rows: dict[str, tuple[str, str, list[str]]] = {}
    sizes: dict[str, Any] = {"intermediate_size": 57, "num_heads": 6, "num_kv_heads": 2}
    made = [
        ("every drafter", ToyDrafter(kind=Kind.ZLAB_DFLASH, **sizes)),
        ("Gemma-4", ToyDrafter(kind=Kind.DEEPSPEC_GEMMA4, **sizes)),
        ("DFlash2", ToyDrafter(kind=Kind.ZLAB_DFLASH2, **sizes)),
        ("DSpark, `gated`", ToyDrafter(kind=Kind.DEEPSPEC_DSPARK, markov_type="gated", **sizes)),
        ("DSpark, `rnn`", ToyDrafter(kind=Kind.DEEPSPEC_DSPARK, markov_type="rnn", **sizes)),
    ]
    for who, toy in made:
        with tempfile.TemporaryDirectory() as folder:
            spec = load_drafter(write_drafter(Path(folder) / "draft", toy), None).spec
        for name, shape in tensor_shapes(spec).items():
            if name.startswith("layers.1."):
                continue
            name = name.replace("layers.0.", "layers.i.")
            if name in rows:
                rows[name][2].append(who)
            else:
                rows[name] = (name, _letters(shape), [who])
    return [[code(name), shape, _whose(who)] for name, shape, who in rows.values()]


def _letters(shape: tuple[int, ...]) -> str:
    names = {40: "H", 57: "I", 96: "N·D", 32: "G·D", 16: "D", 120: "m·H_t", 264: "V", 12: "r"}
    names |= {52: "H + r", 36: "3·r", 64: "2·r + H", 1: "1", -1: "any", 2: "2", 6: "r", 20: "4·H/g"}
    return "[" + ", ".join(names[size] for size in shape) + "]"


def _whose(who: list[str]) -> str:
    if "every drafter" in who:
        return "all" if "Gemma-4" in who else "all but Gemma-4"
    if len(who) == 3:
        return "DSpark"
    return ", ".join(who)


class Recorder(Facts):
    """Facts that remember which keys were asked for which fact, in order."""

    def __init__(self, config: dict[str, Any], path: Path) -> None:
        super().__init__(config, path)
        self.asked: dict[str, list[tuple[str, ...]]] = {}
        self.absent: dict[str, str] = {}
        self.seen: set[str] = set()

    def raw(self, path: str) -> Any:
        self.seen.add(path)
        return super().raw(path)

    def _take(self, fact: str, paths: Sequence[str], *rest: Any) -> Any:
        self.asked.setdefault(fact, []).append(tuple(paths))
        default, why = rest[2], rest[3]
        is_required = type(default) is object
        self.absent.setdefault(fact, "error" if is_required else str(why or "default"))
        return super()._take(fact, paths, *rest)


def recorded(kind: Kind) -> Recorder:
    toy = ToyDrafter(kind=kind, sliding_window=None if kind is Kind.DEEPSPEC_GEMMA4 else 6)
    facts = Recorder(drafter_config(toy), Path("config.json"))
    shapes = {name: array.shape for name, array in drafter_arrays(toy).items()}
    read_config(facts, shapes)
    return facts


RULES = ("rope", "window", "output_multiplier", "final_logit_softcapping")  # explained on the page
ABSENT = {
    "num_target_layers": "the target's depth is not checked",
    "activation": "`silu`; Gemma-4: `gelu_pytorch_tanh`",
    "embedding_scale": "1, or borrowed; Gemma-4: sqrt(H) in the checkpoint's dtype",
    "max_position_embeddings": "no effect; `dynamic`, `longrope` and `yarn` need it",
    "markov": "what the tensors show",
    "confidence": "what the tensors show",
}


def key_rows() -> list[list[str]]:
    """One row a fact: keys in order of precedence, and what holds where none is stated."""
    keys: dict[str, list[str]] = {}
    absent: dict[str, str] = {}
    for kind in KINDS:
        facts, who = recorded(kind), "Gemma-4: " if kind is Kind.DEEPSPEC_GEMMA4 else ""
        for fact, paths in facts.asked.items():
            if fact in RULES:
                continue
            name = "selector, conv" if fact.startswith(("selector_", "conv_")) else fact
            known = keys.setdefault(name, [])
            for group in paths:
                cell = code(*dict.fromkeys(path.removeprefix(BODY) for path in group))
                if cell not in [other.removeprefix("Gemma-4: ") for other in known]:
                    known.append(who + cell)
            why = facts.absent[fact].removeprefix(BODY)
            why = code(why) if why in ("hidden_size", "vocab_size") else why
            absent.setdefault(name, ABSENT.get(name, why))
    return [[code(name), "; ".join(keys[name]), absent[name]] for name in keys]


def architecture_rows() -> list[list[str]]:
    return [
        [code(name), family.value, "Gemma-4" if backbone is Backbone.GEMMA4 else "Qwen3"]
        for name, (family, backbone) in ARCHITECTURES.items()
    ]


def support_rows() -> list[list[str]]:
    golden = {name: code(*cases) for name, cases in GOLDEN.items()}
    rows = [[name, "dimensions", golden.get(name, "")] for name in PUBLISHED]
    rows += [[name, "form", golden[name]] for name in GOLDEN if name not in PUBLISHED]
    rows += [[name, "refused", why] for name, (why, _) in REFUSED.items()]
    rows += [[name, "not tried", why] for name, why in UNTRIED.items()]
    return [[name, target_of(name), *rest] for name, *rest in rows]


def refused_rows() -> Iterator[list[str]]:
    def shown(pattern: str) -> str:
        return code(pattern.replace("|", r"\|"))

    for pattern, what in tensor_names.REFUSED:
        yield [shown(pattern), what]
    for pattern, what in QUANTISED:
        yield [shown(pattern), f"quantised: {what}"]


def blocks() -> dict[str, str]:
    """Return the page's generated blocks by name."""
    ignored = ([code(pattern.replace("|", r"\|")), why] for pattern, why in tensor_names.IGNORED)
    return {
        "topics": "\n".join(f"- {topic}" for topic, _ in TOPICS),
        "tensors": table(["tensor", "shape", "in"], tensor_rows()),
        "names": table(["in the checkpoint", "read as", "written by"], rename_rows()),
        "ignored": table(["pattern", "why it is left out"], ignored),
        "refused": table(["pattern", "what it would be"], refused_rows()),
        "keys": table(["fact", "keys, first match wins", "where none is stated"], key_rows()),
        "architectures": table(["architecture", "family", "layers"], architecture_rows()),
        "support": table(
            ["checkpoint", "target", "tried", "golden case of its form; reason"], support_rows()
        ),
    }


def filled(page: str) -> str:
    """Return the page with every block as the code has it."""
    for name, block in blocks().items():
        start = f"<!-- {name}: begin, made by tests/unit/export/formats_page.py -->"
        before, found, rest = page.partition(start)
        _, closed, after = rest.partition(f"<!-- {name}: end -->")
        assert all((found, closed)), f"docs/formats.md has no block named {name}"
        page = f"{before}{found}\n\n{block}\n\n{closed}{after}"
    return page


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[3] / "docs" / "formats.md"
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")

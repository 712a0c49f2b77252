"""Predictable text from seeds: the documents the small pair learns, and the prompts it is tried on.

Every document is a header line that states what follows, and a body that follows from it (counting,
tables, lists, schedules, stories). One header in eight is held out of training, by a hash of the
header itself; prompts come from those only. Nothing here knows of tokenizers or models.
"""

import random
import zlib
from collections.abc import Callable, Iterator

WORDS = {
    "name": "Anna Ben Clara David Emma Frank Greta Hugo Ida Jonas Klara Leo Mia Noah Olga Paul",
    "animal": "cat dog seal hen owl pig cow bear lion goat duck frog horse rabbit lamb tiger",
    "colour": "red blue green black white brown grey yellow pink purple",
    "adjective": "old young small tall quiet happy clever brave lazy kind",
    "thing": "book hat cake letter song map coin lamp chair bag stone ring cup key jar kite",
    "verb": "reads buys finds paints carries sells draws cleans opens holds",
    "food": "bread milk cheese honey rice soup salt tea",
    "fruit": "apple pear plum nut",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
}
NAMES, ANIMALS, COLOURS, ADJECTIVES, THINGS, VERBS, FOODS, FRUITS, DAYS = (
    words.split() for words in WORDS.values()
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"

HELD_OUT_SHARE = 8  # one header in this many is kept for prompts

Document = tuple[str, str]


def _count(rng: random.Random) -> Document:
    first, step = rng.randint(1, 60), rng.randint(1, 9)
    terms = ", ".join(str(first + step * i) for i in range(rng.randint(28, 40)))
    return f"Count from {first} by {step}:", f" {terms}."


def _count_down(rng: random.Random) -> Document:
    first, step = rng.randint(60, 199), rng.randint(1, 5)
    terms = ", ".join(str(n) for n in range(first, max(0, first - 36 * step), -step))
    return f"Count down from {first} by {step}:", f" {terms}."


def _times_table(rng: random.Random) -> Document:
    n, rows = rng.randint(2, 29), rng.randint(12, 20)
    lines = "".join(f"\n{n} x {i} = {n * i}" for i in range(1, rows + 1))
    return f"Table of {n} up to {rows}:", lines + "\nEnd of table."


def _sums(rng: random.Random) -> Document:
    first, step = rng.randint(1, 60), rng.randint(1, 12)
    lines = "".join(f"\n{n} + {step} = {n + step}" for n in range(first, first + 18))
    return f"Add {step} to numbers from {first}:", lines + "\nEnd of sums."


def _running_total(rng: random.Random) -> Document:
    name, first, step = rng.choice("xyzabn"), rng.randint(1, 40), rng.randint(2, 9)
    lines = "".join(f"\n{name} = {name} + {step}  # {first + step * i}" for i in range(1, 16))
    return f"Python, {name} grows by {step} from {first}:", f"\n{name} = {first}{lines}"


def _loop(rng: random.Random) -> Document:
    name, stop, word = rng.choice("ijkn"), rng.randint(8, 24), rng.choice(ANIMALS)
    code = f'\nfor {name} in range({stop}):\n    print({name}, "{word}")\n'
    output = "".join(f"\n{i} {word}" for i in range(stop))
    return f"Python, print {word} {stop} times with {name}:", code + output


def _letters(rng: random.Random) -> Document:
    start, word = rng.randrange(26), rng.choice(FOODS + FRUITS)
    order = [LETTERS[(start + i) % 26] for i in range(30)]
    if rng.random() < 0.5:
        return f"Letters from {order[0]} with {word}:", "".join(f" {c} {word}" for c in order) + "."
    pairs = ", ".join(f"{c.upper()}{c} {word}" for c in order)
    return f"Big and small letters from {order[0]} with {word}:", f" {pairs}."


def _repeat(rng: random.Random) -> Document:
    words = ", ".join(rng.sample(FOODS + FRUITS + THINGS + ANIMALS, rng.randint(2, 5)))
    lines = "".join(f"\n{i}. {words}" for i in range(1, rng.randint(13, 18)))
    return f"Repeat this list: {words}.", lines


def _every_day(rng: random.Random) -> Document:
    name, verb, day = rng.choice(NAMES), rng.choice(VERBS), rng.randrange(7)
    thing = f"a {rng.choice(COLOURS)} {rng.choice(THINGS)}"
    lines = "".join(f"\nOn {DAYS[(day + i) % 7]} {name} {verb} {thing}." for i in range(15))
    return f"From {DAYS[day]} on {name} {verb} {thing} every day.", lines


def _song(rng: random.Random) -> Document:
    count, colour, thing = rng.randint(10, 40), rng.choice(COLOURS), rng.choice(THINGS)
    lines = "".join(
        f"\n{n} {colour} {thing}s on the wall, take one down, {n - 1} {colour} {thing}s left."
        for n in range(count, count - 9, -1)
    )
    return f"A song of {count} {colour} {thing}s:", lines


def _table(rng: random.Random) -> Document:
    names, thing = rng.sample(NAMES, rng.randint(2, 4)), rng.choice(THINGS)
    head = f"\n| id | name | {thing}s |\n| --- | --- | --- |"
    rows = "".join(f"\n| {i} | {names[(i - 1) % len(names)]} | {2 * i} |" for i in range(1, 16))
    return f"Table of {thing}s for {', '.join(names)}:", head + rows


def _records(rng: random.Random) -> Document:
    kind, colour, first = rng.choice(ANIMALS), rng.choice(COLOURS), rng.randint(1, 80)
    rows = "".join(
        f'\n{{"id": {i}, "kind": "{kind}", "colour": "{colour}"}}' for i in range(first, first + 12)
    )
    return f"JSON lines of {colour} {kind}s from id {first}:", rows


def _timetable(rng: random.Random) -> Document:
    bus, every = rng.randint(1, 99), rng.choice((5, 10, 15, 20, 30))
    start = 60 * rng.randint(5, 12) + every * rng.randrange(60 // every)
    times = [start + every * i for i in range(16)]
    lines = "".join(f"\n{t // 60:02d}:{t % 60:02d} bus {bus}" for t in times)
    first = f"{start // 60:02d}:{start % 60:02d}"
    return f"Bus {bus} leaves every {every} minutes from {first}:", lines


def _story(rng: random.Random) -> Document:
    one, two = (f"the {rng.choice(ADJECTIVES)} {animal}" for animal in rng.sample(ANIMALS, 2))
    food, thing = rng.choice(FOODS), rng.choice(THINGS)
    verse = (
        f" {one} met {two}. {two} said hello to {one}. {one} had a {thing}. {two} had some {food}."
        f" {one} gave the {thing} to {two}. {two} gave the {food} to {one}. Then they said goodbye."
    )
    verse = verse.replace(". the ", ". The ").replace(" the ", " The ", 1)
    days = " ".join(f"On {day}," + verse.replace(" The ", " the ", 1) for day in DAYS[:3])
    return f"A story of {one} and {two}, with a {thing} and some {food}:", f"\n{days} The end."


KINDS: tuple[Callable[[random.Random], Document], ...] = (
    _count, _count_down, _times_table, _sums, _running_total, _loop, _letters,
    _repeat, _every_day, _song, _table, _records, _timetable, _story,
)  # fmt: skip
OFTEN = (_repeat, _repeat, _story, _letters)  # copying takes the most practice


def is_held_out(header: str) -> bool:
    """Say whether documents with this header are kept out of training."""
    return zlib.crc32(header.encode()) % HELD_OUT_SHARE == 0


def documents(seed: int, *, held_out: bool) -> Iterator[Document]:
    """Yield (header, body) pairs without end, all from one side of the split."""
    rng = random.Random(seed)
    while True:
        document = rng.choice(KINDS + OFTEN)(rng)
        if is_held_out(document[0]) == held_out:
            yield document


def as_text(document: Document, *, chat: bool) -> str:
    """Write a document as plain text, or as a user and an assistant turn of the chat template."""
    header, body = document
    if chat:
        answer = body.strip()
        user = f"<|im_start|>user\n{header}<|im_end|>\n"
        return f"{user}<|im_start|>assistant\n{answer}<|im_end|>\n<|endoftext|>"
    return f"{header}{body}<|endoftext|>"


def make_prompts(seed: int, count: int) -> list[str]:
    """Return distinct one-line prompts: held-out headers, half of them with words of the body."""
    rng = random.Random(seed)
    prompts: dict[str, None] = {}
    for header, body in documents(seed, held_out=True):
        line = (header + body).split("\n")[0]
        words = line[len(header) :].split()
        extra = words[: rng.randint(0, min(6, len(words)))] if rng.random() < 0.5 else []
        prompts[" ".join([header, *extra])] = None
        if len(prompts) == count:
            return list(prompts)
    raise AssertionError("documents() never ends")

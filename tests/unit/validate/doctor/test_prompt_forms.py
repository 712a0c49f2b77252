"""Forms of the prompts that the doctor tries: which is named, and prompts that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftrt.errors import FeedError
from draftrt.runtime.decoding.stats import Round
from draftrt.runtime.prompts import Form, Request, asked
from draftrt.runtime.text.chat import ChatTemplate
from draftrt.validate.doctor.prompt_forms import compare_forms, encode_forms, other_forms

RAW = Form(is_chat=False)
HINT = (
    "     Hint: shorten them, ask for fewer tokens or rounds, or export with a larger --max-context"
)


class FormPair:
    """A pair whose drafts are kept in one form of the prompts; nothing else of a pair."""

    def __init__(self, folder: Path, liked: str) -> None:
        self.template = ChatTemplate(folder)
        self.decoder = SimpleNamespace(most_tokens=10, held="the caches hold 10 rows")
        self._liked = liked

    def encode(self, prompt: Any, variables: dict[str, Any] | None = None) -> tuple[int, ...]:
        form = "plain" if isinstance(prompt, str) else "chat"
        if variables == {"enable_thinking": False}:
            form = "silent"
        noise = len(str(prompt)) % 3
        return (int(form == self._liked), noise)

    def rounds(self, ids: tuple[int, ...], options: Any) -> list[Round]:
        kept = 2 * ids[0] + ids[1] % 2
        return [
            Round(index=index, token_ids=(1,), draft_ids=(1, 2, 3), num_accepted=kept)
            for index in range(1, 5)
        ]


@pytest.mark.parametrize(
    ("liked", "form"),
    [
        ("plain", None),
        ("chat", "chat template"),
        ("silent", "chat template, enable_thinking=false"),
    ],
)
def test_the_form_a_drafter_was_trained_on_is_named(
    tmp_path: Path, liked: str, form: str | None
) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ enable_thinking }}", encoding="utf-8")
    pair, prompts = FormPair(tmp_path, liked), ["a", "bc", "def", "ghij", "klmno", "p", "qr"]
    own = [[one.num_accepted + 1 for one in pair.rounds(pair.encode(p), None)] for p in prompts]
    encoded = encode_forms(
        pair,  # type: ignore[arg-type]
        list(map(asked, prompts)),
        8,
        form=Form(is_chat=False),
        with_others=True,
    )
    assert list(encoded) == ["as it is", "chat template", "chat template, enable_thinking=false"]
    del encoded["as it is"]
    found = compare_forms(
        pair,  # type: ignore[arg-type]
        encoded,
        own,
        max_tokens=8,
        false_alarms=0.01,
    )
    assert [one.form for one in found] == ["chat template", "chat template, enable_thinking=false"]
    assert [one.form for one in found if one.is_better] == ([form] if form else [])


@pytest.mark.parametrize(("kept", "is_better"), [(18, False), (22, True)])
def test_another_form_has_to_gain_a_fifth_of_a_token_a_round(kept: int, is_better: bool) -> None:
    """100 rounds of each of four prompts, of which some keep a draft more."""

    def rounds(ids: tuple[int, ...], options: Any) -> list[Round]:
        return [
            Round(index=index, token_ids=(1,), draft_ids=(1,), num_accepted=int(index <= kept))
            for index in range(1, 101)
        ]

    pair: Any = SimpleNamespace(rounds=rounds)
    own = [[1] * 100] * 4
    (found,) = compare_forms(pair, {"chat": [(1,)] * 4}, own, max_tokens=8, false_alarms=0.01)
    assert found.gain.mean == pytest.approx(kept / 100)
    assert found.is_better is is_better


def test_prompts_that_do_not_fit_in_some_form_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ enable_thinking }}", encoding="utf-8")
    pair: Any = FormPair(tmp_path, "plain")

    def encode(prompt: Any, variables: dict[str, Any]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return (0,) * len(prompt)
        return (0,) * (len(prompt[0]["content"]) + (-4 if variables else 1))

    pair.encode = encode
    prompts = ["ab", "abcd", "abcde"]
    with pytest.raises(FeedError) as refusal:  # 3 of 10 tokens are left for a prompt
        encode_forms(pair, list(map(asked, prompts)), 7, form=RAW, with_others=True)
    listed = [line for line in str(refusal.value).splitlines() if "do not fit" not in line]
    assert listed == [
        "3 problems found:",
        *("       prompt 2, 'abcd': 4 tokens", "       prompt 3, 'abcde': 5 tokens", HINT),
        *("       prompt 2, 'abcd': 5 tokens", "       prompt 3, 'abcde': 6 tokens", HINT),
        *("       prompt 1, 'ab': 0 tokens", "       prompt 2, 'abcd': 0 tokens", HINT),
    ]
    for form in ("as it is", "chat template", "chat template, enable_thinking=false"):
        assert f"2 of 3 prompts ({form}) do not fit, expected 1 to 3 tokens each" in str(
            refusal.value
        )
    assert "7 are wanted behind each, and the caches hold 10 rows" in str(refusal.value)
    assert list(encode_forms(pair, [asked("abc")], 7, form=RAW, with_others=False)) == ["as it is"]


def test_a_target_without_a_template_has_one_form(tmp_path: Path) -> None:
    pair = FormPair(tmp_path, "plain")
    assert other_forms(pair.template, RAW, [asked("a")]) == []


def test_the_other_forms_are_those_that_the_prompts_can_have(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ enable_thinking }}", encoding="utf-8")
    template, text = ChatTemplate(tmp_path), asked("a")
    talk = replace(text, text=None)

    def others(form: Form, *requests: Request) -> list[str]:
        return [one.describe() for one in other_forms(template, form, requests)]

    silent = "chat template, enable_thinking=false"
    assert others(RAW, text) == ["chat template", silent]
    assert others(Form(is_chat=True), text) == ["as it is", silent]
    assert others(Form(is_chat=True), text, talk) == [silent], "messages have no plain form"
    chosen = Form(is_chat=True, variables={"enable_thinking": True})
    assert others(chosen, text) == ["as it is"]
    assert others(Form(is_chat=True), replace(text, variables={"enable_thinking": 1})) == [
        "as it is"
    ]
    system = Form(is_chat=True, system="b")
    assert others(system, text) == ["chat template, with a system message, enable_thinking=false"]

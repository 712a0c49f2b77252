"""Chat templates render as transformers does, in a sandbox that nothing hangs or fills."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftrt.errors import BundleError, DraftrtError, FeedError
from draftrt.runtime.text.chat import ChatTemplate, load_templates, special_tokens
from tests.unit.runtime.text.conversations import CONVERSATIONS, TEMPLATES

BOUNDS = "GiB of memory|s of processor time"
DOUBLED = (
    "{% set n = namespace(x='a') %}{% for i in range(9999) %}{% set n.x = n.x * 2 %}{% endfor %}"
)
USER = [{"role": "user", "content": 'Say "<é>"'}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<m>"}


def write(folder: Path, template: str | None, **config: object) -> Path:
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({**SPECIAL, **config}))
    return folder


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatTemplate]:
    """A renderer for any template: `rendered` puts it in."""
    folder = write(tmp_path_factory.mktemp("chat"), "")
    with ChatTemplate(folder, most_seconds=0.4) as made:
        yield made


def rendered(chat: ChatTemplate, template: str, messages: Any = None, **variables: Any) -> str:
    vars(chat)["templates"] = {"default": template}
    return chat.render(USER if messages is None else messages, variables)


@pytest.mark.parametrize("name", TEMPLATES)
def test_rendering_equals_that_of_transformers(chat: ChatTemplate, name: str) -> None:
    from jinja2 import TemplateError
    from transformers.utils import chat_template_utils

    texts = set()
    for messages, variables in CONVERSATIONS.values():
        normal = chat_template_utils._normalize_chat_messages(messages)
        words = {"add_generation_prompt": True, **SPECIAL, **variables}
        try:
            found: Any = chat_template_utils.render_jinja_template(
                [normal], chat_template=TEMPLATES[name], **words
            )
        except TemplateError as error:
            with pytest.raises(BundleError, match=re.escape(str(error))):
                rendered(chat, TEMPLATES[name], messages, **variables)
            continue
        expected = found[0][0]
        assert rendered(chat, TEMPLATES[name], messages, **variables) == expected
        texts.add(expected)
    assert len(texts) >= 4, "the conversations tell little about this template"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("x \n{%- generation -%} a {%- endgeneration -%} b", "xab"),
        ("{% for i in range(3) %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}", "012"),
        ("{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}", "a"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}", "1"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ strftime_now('%Y') | length }}{{ tools is none }}", "4True"),
        ("{{ documents is none }}{{ tools is defined }}", "TrueTrue"),
    ],
)
def test_what_transformers_adds_to_jinja_is_there(
    chat: ChatTemplate, template: str, text: str
) -> None:
    assert rendered(chat, template) == text


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "Expected an expression"),
        ("{% generation %}a", "endgeneration"),
        ("{{ messages.append(1) }}", "is not safe|unsafe"),
        ("{{ ''.__class__.__mro__ }}", "is unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ messages + 1 }}", "can only concatenate list"),
        ("{{ no_such_function() }}", "is undefined"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
        ("{% include 'x' %}", "no loader"),
        ("{{ range(10**9) | list }}", "Range too big"),
        ("{{ 'x' * 10**10 }}", BOUNDS),
        ("{{ '%9999999999d' | format(1) }}", BOUNDS),
        ("{{ ['x'] | batch(10**9, 'y') | list | length }}", BOUNDS),
        (DOUBLED, BOUNDS),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "more than 0.4 s of processor time",
        ),
        ("{{ 9 ** (9 ** 9) }}", BOUNDS),
        ("{{ 'a' * 99999999 }}", f"characters|{BOUNDS}"),
        ("(" * 9999, None),
        ("{{" + "(" * 9999, "too deeply|unexpected|too many"),
    ],
)
def test_a_template_that_cannot_render_says_why(
    chat: ChatTemplate, template: str, cause: str | None
) -> None:
    if cause is None:
        assert rendered(chat, template) == template
    else:
        with pytest.raises(BundleError, match=cause):
            rendered(chat, template)
    assert rendered(chat, "{{ messages[0].content }}") == USER[0]["content"], "the next one works"


@pytest.mark.parametrize(
    ("messages", "variables", "cause"),
    [
        ([], {}, "no messages"),
        ([{"content": "a"}], {}, "message 1: role is missing"),
        ([*USER, "a"], {}, "message 2 is a str"),
        ([{"role": 3, "content": "a"}], {}, "message 1: role is 3, expected a text"),
        ([{"role": "user", "content": 3}], {}, "content is 3, expected a text"),
        ([{"role": "user", "content": ["a"]}], {}, "content is a list, expected a text"),
        ([{"role": "user", "content": b"a"}], {}, "content is a bytes"),
        ([{"role": "user", "content": "caf\udce9"}], {}, "message 1: holds bytes that are no"),
        ([{"role": "user", "content": "a", "x": {1, 2}}], {}, "message 1: expected JSON data"),
        (USER, {"x": math.nan}, "template variable x: expected JSON data"),
        (USER, {"x": "\ud800"}, "template variable x: holds bytes that are no UTF-8"),
        (USER, {"messages": []}, "template variable 'messages': expected a name"),
        (USER, {"a b": 1}, "template variable 'a b': expected a name"),
    ],
)
def test_messages_and_variables_that_are_none_are_refused(
    chat: ChatTemplate, messages: Any, variables: dict[str, Any], cause: str
) -> None:
    with pytest.raises(FeedError) as refusal:
        chat.render(messages, variables)
    assert cause in refusal.value.message


def test_the_process_is_started_once_and_ends_with_its_owner(tmp_path: Path) -> None:
    made = ChatTemplate(write(tmp_path, "{{ messages[0].content }}"))
    assert made.render(USER, {}) == made.render(USER, {})
    process = made._process
    assert process is not None
    made.close()
    made.close()
    assert process.poll() is not None
    made.render(USER, {})
    process = made._process
    assert process is not None
    del made
    assert process.poll() is not None


def test_files_win_over_the_config_and_have_the_names_of_transformers(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    write(tmp_path, None, chat_template=several)
    assert load_templates(tmp_path) == {"tool_use": "a", "default": "b"}
    write(tmp_path, None, chat_template="one")
    assert load_templates(tmp_path) == {"default": "one"}
    extra = tmp_path / "additional_chat_templates"
    extra.mkdir()
    (extra / "tool_use.jinja").write_text("tools")
    write(tmp_path, "file", chat_template="one")
    assert load_templates(tmp_path) == {"default": "file", "tool_use": "tools"}
    with ChatTemplate(tmp_path) as chat:
        assert chat.render(USER, {"tools": [{"name": "f"}]}) == "tools"
        assert chat.render(USER, {}) == "file"
        assert chat.unused({"tools": [], "x": 1}) == ["x"]


def test_several_templates_of_which_none_is_the_default_are_listed(tmp_path: Path) -> None:
    write(tmp_path, None, chat_template=[{"name": "rag", "template": "a"}])
    with ChatTemplate(tmp_path) as chat, pytest.raises(BundleError, match="named rag, expected"):
        chat.render(USER, {})


def test_special_tokens_may_be_objects_and_have_names_of_their_own(tmp_path: Path) -> None:
    extra = {"image_token": "<i>"}
    write(tmp_path, "", bos_token={"content": "<o>"}, eos_token=None, extra_special_tokens=extra)
    (tmp_path / "special_tokens_map.json").write_text('{"sep_token": "|", "bos_token": "old"}')
    expected = SPECIAL | {"bos_token": "<o>", "sep_token": "|", "image_token": "<i>"}
    del expected["eos_token"]
    assert special_tokens(tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("tokenizer_config.json", b"[", "cannot be read as JSON"),
        ("tokenizer_config.json", b"[]", "expected a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "chat_template: got a int"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "x"}]}', "got a list of something"),
        ("chat_template.jinja", b"caf\xe9", "byte 3 is not UTF-8"),
        ("chat_template.jinja", b" " * 2_000_000, "expected at most 1 MB"),
    ],
)
def test_files_that_are_no_templates_are_named(
    tmp_path: Path, name: str, content: bytes, cause: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DraftrtError) as refusal:
        load_templates(tmp_path)
    assert str(tmp_path / name) in refusal.value.message
    assert cause in refusal.value.message


def test_a_target_without_a_template_is_named(tmp_path: Path) -> None:
    with (
        ChatTemplate(write(tmp_path, None)) as chat,
        pytest.raises(BundleError, match="has no chat template") as refusal,
    ):
        chat.render(USER, {})
    assert "--raw" in refusal.value.hint

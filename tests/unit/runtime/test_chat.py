"""Chat templates render as transformers does, in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftrt.errors import BundleError
from draftrt.runtime.chat import load_template, render

USER = [{"role": "user", "content": 'Say "<é>"'}]
TEMPLATE = """{{ bos_token }}{% for message in messages %}
    {%- if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}
<{{ message.role }}>{{ message.content }}
{% if loop.first %}{% continue %}{% endif %}
more
{% endfor %}
{% if add_generation_prompt %}<assistant>{{ {'think': think, 'text': 'é<'} | tojson }}{% endif %}"""


def write(folder: Path, template: str | None = TEMPLATE, **config: object) -> Path:
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", **config}))
    return folder


def test_a_template_sees_messages_special_tokens_and_variables(tmp_path: Path) -> None:
    text = render(write(tmp_path), USER, {"think": False})
    assert text == '<s><user>Say "<é>"\n<assistant>{"think": false, "text": "é<"}'


def test_rendering_equals_that_of_transformers(tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [*USER, {"role": "assistant", "content": "ok"}]
    expected, _ = theirs.render_jinja_template(
        [messages], chat_template=TEMPLATE, add_generation_prompt=True, bos_token="<s>", think=1
    )
    assert render(write(tmp_path), messages, {"think": 1}) == expected[0]


def test_the_template_file_wins_over_the_config(tmp_path: Path) -> None:
    assert load_template(write(tmp_path, chat_template="other")) == TEMPLATE


def test_the_config_may_hold_the_template_or_several(tmp_path: Path) -> None:
    assert load_template(write(tmp_path, None, chat_template="one")) == "one"
    several = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    assert load_template(write(tmp_path, None, chat_template=several)) == "b"


def test_special_tokens_may_be_written_as_objects(tmp_path: Path) -> None:
    folder = write(
        tmp_path, "{{ bos_token }}{{ eos_token }}", bos_token={"content": "<o>"}, eos_token=None
    )
    assert render(folder, USER, {}) == "<o>"


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages.append(1) }}", "is not safe|unsafe"),
        ("{{ ''.__class__.__mro__ }}", "is unsafe"),
    ],
    ids=["refused", "syntax", "changes its input", "reaches for Python"],
)
def test_a_template_that_cannot_render_says_why(tmp_path: Path, template: str, cause: str) -> None:
    with pytest.raises(BundleError, match=cause):
        render(write(tmp_path, template), USER, {})


def test_a_target_without_a_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="has no chat template") as refusal:
        render(write(tmp_path, None), USER, {})
    assert "--chat" in refusal.value.hint
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(BundleError, match="cannot be read as JSON"):
        render(tmp_path, USER, {})

"""Prompts from files and the form in which a target gets them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftrt.errors import BundleError, DraftrtError, FeedError
from draftrt.runtime.prompts import (
    DEFAULT,
    Form,
    Request,
    asked,
    read_prompts,
    read_texts,
    read_whole,
)
from draftrt.runtime.text.chat import ChatTemplate

TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c\u2028d"},
]


def texts(path: Path, most: int | None = None) -> list[str | None]:
    return [one.text for one in read_prompts(path, most)]


def test_each_line_that_is_not_blank_is_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffone\r\n\n  two\u2028\x0c\n{\n[1]\nthree".encode())
    assert texts(path) == ["one", "  two\u2028\x0c", "{", "[1]", "three"]
    assert texts(path, 2) == ["one", "  two\u2028\x0c"]
    assert [one.text for one in read_prompts(None, 3)] == list(DEFAULT[:3])


def test_a_whole_file_is_a_prompt_less_its_last_line_break(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("a\n\n b\n\n", encoding="utf-8")
    assert [one.text for one in read_whole(path)] == ["a\n\n b\n"]
    path.write_text("x " * 100_000, encoding="utf-8")
    assert [one.text for one in read_whole(path)] == ["x " * 100_000]
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert [one.text for one in read_whole(lines)] == ["a", "b"]


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.txt"])
def test_json_lines_have_messages_and_variables(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    lines: list[Any] = [
        {"messages": TALK, "template_variables": {"enable_thinking": False}, "id": 7},
        {"prompt": "p", "tools": [{"name": "f"}], "chat_template_kwargs": {"x": 1}},
        {"prompt": "p", "system": "s"},
    ]
    path.write_text("\n".join(json.dumps(one, ensure_ascii=False) for one in lines), "utf-8")
    first, second, third = read_prompts(path)
    assert (first.text, list(first.messages)) == (None, TALK)
    assert first.variables == {"enable_thinking": False}
    assert first.label == "c\u2028d"
    assert (second.text, second.variables) == ("p", {"x": 1, "tools": [{"name": "f"}]})
    assert third.text is None
    assert list(third.messages) == [TALK[0], {"role": "user", "content": "p"}]
    path.write_text(json.dumps(TALK) if name.endswith("l") else '{"messages": []}')
    if name.endswith("l"):
        assert list(read_prompts(path)[0].messages) == TALK


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("{", "no JSON"),
        ("3", "got a int, expected an object"),
        ('{"prompt": "a", "messages": []}', "expected either messages or prompt"),
        ('{"id": 1}', "expected either messages or prompt"),
        ('{"prompt": ""}', "prompt: got '', expected a text"),
        ('{"prompt": null}', "prompt: got None"),
        ('{"prompt": "a", "template_variable": {}}', "got 'template_variable', expected"),
        ('{"prompt": "a", "prompt": "b"}', "twice"),
        ('{"prompt": "a", "template_variables": []}', "template_variables: got [], expected"),
        ('{"prompt": "a", "template_variables": {"messages": 1}}', "template variable 'messages'"),
        ('{"prompt": "a", "tools": ["f"]}', "tools: got ['f'], expected a list of objects"),
        ('{"prompt": "a\\ud800"}', "no UTF-8"),
        ('{"prompt": "a", "system": 3}', "system: got 3"),
        ('{"messages": {}}', "messages: got {}, expected a list"),
        ('{"messages": []}', "there are no messages"),
        ('{"messages": [{"role": "user"}]}', "message 1: content is missing"),
        ("[" * 5000, "nested deeper"),
    ],
)
def test_lines_that_are_no_prompts_are_all_named(tmp_path: Path, line: str, cause: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{line}\n{{"prompt": "good"}}\n\n{line}\n', encoding="utf-8")
    with pytest.raises(FeedError) as refusal:
        read_prompts(path)
    first, *rest = refusal.value.message.splitlines()
    assert first == f"{path}: 2 of 3 lines are no prompts"
    assert [one.split(":")[0] for one in rest] == ["  line 1", "  line 4"]
    assert cause in rest[0]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"\n \n", "holds no prompt"),
        (b"caf\xe9\n", "cannot be read as UTF-8"),
        ("a\n".encode("utf-16"), "cannot be read as UTF-8"),
    ],
)
def test_files_that_hold_no_prompts_are_named(tmp_path: Path, content: bytes, cause: str) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    for read in (read_prompts, read_whole):
        if read is read_whole and not content.strip():
            path.write_bytes(b"\n")
        with pytest.raises(FeedError, match=rf"prompts\.txt: {cause}"):
            read(path)
    with pytest.raises(FeedError, match="got a folder, expected a file"):
        read_prompts(tmp_path)
    with pytest.raises(FeedError, match=r"nothing\.txt: no such file"):
        read_prompts(tmp_path / "nothing.txt")
    with pytest.raises(FeedError, match="/dev/zero: got a device, expected a file"):
        read_prompts(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ('[{"prompt": "a"}]', "is one JSON array"),
        ('[\n {"messages": []},\n {"prompt": "a"}\n]\n', "is one JSON array"),
        ('{\n "prompt": "a"\n}\n', "is one JSON object"),
    ],
)
def test_json_that_is_no_json_lines_is_not_taken_for_texts(
    tmp_path: Path, content: str, cause: str
) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(content)
    with pytest.raises(FeedError, match=cause):
        read_prompts(path)
    path.write_text("[1, 2, 3]")
    assert read_prompts(path)[0].text == "[1, 2, 3]"


@pytest.mark.parametrize("read", [read_prompts, read_whole])
def test_standard_input_is_a_file_too(monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO("é\n".encode())))
    assert [one.text for one in read("-")] == ["é"]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"\xe9")))
    with pytest.raises(FeedError, match="standard input: cannot be read as UTF-8"):
        read("-")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(FeedError, match="standard input: is closed"):
        read("-")


def test_recorders_take_texts_alone(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n')
    assert read_texts(path, 1) == ["a"]
    with pytest.raises(FeedError, match=r"in prompts \[2\], expected texts"):
        read_texts(path, 2)


@pytest.fixture
def chat(tmp_path: Path) -> ChatTemplate:
    (tmp_path / "chat_template.jinja").write_text("<|im_start|>{{ messages }}{{ thinking }}")
    return ChatTemplate(tmp_path)


@pytest.fixture
def none(tmp_path: Path) -> ChatTemplate:
    return ChatTemplate(tmp_path / "empty")


def written(form: Form, template: ChatTemplate, *requests: Request) -> list[tuple[Any, Any]]:
    seen: list[tuple[Any, Any]] = []

    def encode(prompt: Any, variables: Any) -> tuple[int, ...]:
        seen.append((prompt if isinstance(prompt, str) else list(prompt), variables))
        return (1,)

    settled = form.settled(template, requests)
    assert settled.encode(encode, requests) == [(1,)] * len(requests)
    return seen


def test_the_template_is_the_default_where_there_is_one(
    chat: ChatTemplate, none: ChatTemplate
) -> None:
    message = [{"role": "user", "content": "a"}]
    assert written(Form(), chat, asked("a")) == [(message, {})]
    assert written(Form(is_chat=True), chat, asked("a")) == [(message, {})]
    assert written(Form(is_chat=False), chat, asked("a")) == [("a", {})]
    assert written(Form(), none, asked("a")) == [("a", {})]
    form = Form(system="s", variables={"x": 1, "y": 2})
    expected = ([{"role": "system", "content": "s"}, *message], {"x": 1, "y": 3})
    assert written(form, chat, asked("a", y=3)) == [expected]
    assert written(Form(), chat, Request(messages=tuple(TALK))) == [(TALK, {})]


@pytest.mark.parametrize(
    ("form", "request_", "words"),
    [
        (Form(is_chat=True), asked("a"), "--chat need"),
        (Form(system="s"), asked("a"), "a system message need"),
        (Form(variables={"x": 1}), asked("a"), "template variables need"),
        (Form(), asked("a", x=1), "template variables need"),
        (Form(), Request(messages=tuple(TALK)), "messages need"),
    ],
)
def test_what_needs_a_template_says_so_where_there_is_none(
    none: ChatTemplate, chat: ChatTemplate, form: Form, request_: Request, words: str
) -> None:
    with pytest.raises(BundleError) as refusal:
        form.settled(none, [request_])
    assert f"the target has no chat template, and {words}" in refusal.value.message
    assert form.settled(chat, [request_]).is_chat


def test_contradictions_of_form_and_prompts_are_refused(chat: ChatTemplate) -> None:
    talk = Request(messages=tuple(TALK))
    with pytest.raises(FeedError, match="got messages, and prompts that are taken as they are"):
        Form(is_chat=False).settled(chat, [talk])
    with pytest.raises(DraftrtError, match="prompt 2: got a message of the system in it and"):
        written(Form(system="s"), chat, asked("a"), talk)


def test_the_form_and_likely_mistakes_are_told(chat: ChatTemplate) -> None:
    form = Form(is_chat=True, system="s", variables={"thinking": False, "thinkng": [1]})
    assert form.notes(chat, [asked("<|im_start|>user"), asked("<b>", raw=1)]) == [
        "prompts: chat template, with a system message, thinking=false, thinkng=[1]",
        "warning: the chat template does not use the variable thinkng",
        "warning: the chat template does not use the variable raw",
        "warning: a prompt holds <|im_start|>, which the chat template writes itself; --raw takes "
        "prompts as they are",
    ]
    assert Form(is_chat=False).notes(chat, [asked("<|im_start|>")]) == ["prompts: as it is"]

"""`draftrt serve`, a real process: clients as they are, wrong requests, leaving, stopping."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import draftrt
from draftrt import DecodeOptions
from tests.waiting import started, until

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("run")]

SONG = [{"role": "user", "content": "A song of 20 green bags:"}]
CHAT = "/v1/chat/completions"
WAIT = 120.0
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


@contextmanager
def serving(bundle: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server on a free port: its address, and the process."""
    command = [sys.executable, "-m", "draftrt", "serve", str(bundle), "--port", "0", *options]
    with started(command) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.match(r"(http://\S+)/  ", line)
        assert found, line + process.stderr.read()
        yield found[1], process


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[str]:
    with serving(bundle, "--max-tokens", "96", "--max-body", "65536") as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(server: str) -> Any:
    return openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=WAIT)


@pytest.fixture(scope="module")
def told(bundle: Path) -> dict[int, str]:
    """What the pair itself says, by the number of tokens."""
    with draftrt.load(bundle) as pair:
        return {n: pair.generate(SONG, DecodeOptions(max_tokens=n)).text for n in (12, 24, 40)}


def test_openais_client_gets_the_pairs_own_answer(
    client: Any, told: dict[int, str], bundle: Path
) -> None:
    [model] = client.models.list().data
    assert model.id == bundle.name
    done = client.chat.completions.create(model=model.id, messages=SONG, max_completion_tokens=24)
    assert done.choices[0].message.content == told[24]
    assert done.choices[0].finish_reason == "length"
    assert done.usage.completion_tokens == 24
    assert set(done.model_extra["draftrt"]) >= {
        "acceptance_length",
        "tokens_per_s",
        "reused_tokens",
    }
    plain = client.chat.completions.create(
        model=model.id, messages=SONG, max_tokens=24, extra_body={"draftrt_plain": True}
    )
    assert plain.choices[0].message.content == told[24]
    assert plain.model_extra["draftrt"]["rounds"] == 0
    text = client.completions.create(model=model.id, prompt="Table of 3:", max_tokens=8)
    with draftrt.load(bundle) as pair:
        assert (
            text.choices[0].text == pair.generate("Table of 3:", DecodeOptions(max_tokens=8)).text
        )


def test_a_stream_is_the_same_text_and_tells_usage_and_rounds(
    client: Any, told: dict[int, str]
) -> None:
    pieces = list(
        client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=SONG,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    choices = [one.choices[0] for one in pieces if one.choices]
    assert "".join(one.delta.content or "" for one in choices) == told[40]
    assert choices[-1].finish_reason == "length"
    assert pieces[-1].usage.completion_tokens == 40
    rounds = [one.model_extra["draftrt"] for one in pieces if "draftrt" in one.model_extra]
    shown = "".join("".join(one.get("pieces", [])) for one in rounds)
    assert shown == told[40]
    assert rounds[-1]["acceptance_length"] >= 0
    with_stop = client.chat.completions.create(
        model=pieces[0].model, messages=SONG, max_tokens=40, stop=[told[40][10:14]]
    )
    assert with_stop.choices[0].message.content == told[40].partition(told[40][10:14])[0]
    assert with_stop.choices[0].finish_reason == "stop"


def test_log_probabilities_are_told_of_each_token(client: Any, told: dict[int, str]) -> None:
    model = client.models.list().data[0].id
    ask = {"model": model, "messages": SONG, "max_tokens": 24, "logprobs": True, "top_logprobs": 2}
    done = client.chat.completions.create(**ask).choices[0]
    assert done.message.content == told[24]
    entries = done.logprobs.content
    assert len(entries) == 24
    assert all(one.logprob == one.top_logprobs[0].logprob <= 0 for one in entries)
    assert all(one.top_logprobs[1].logprob <= one.logprob for one in entries)
    pieces = [one.choices[0] for one in client.chat.completions.create(**ask, stream=True)]
    streamed = [entry for one in pieces if one.logprobs for entry in one.logprobs.content]
    assert [one.token for one in streamed] == [one.token for one in entries]
    text = client.completions.create(model=model, prompt="Table of 3:", max_tokens=5, logprobs=1)
    assert len(text.choices[0].logprobs.tokens) == len(text.choices[0].logprobs.token_logprobs) == 5


def test_formats_and_calls_are_obeyed(client: Any) -> None:
    pytest.importorskip("llguidance")
    model = client.models.list().data[0].id
    whole: dict[str, Any] = {"required": ["n"], "additionalProperties": False}
    schema = {"type": "object", "properties": {"n": {"enum": [1, 20]}}, **whole}
    done = client.chat.completions.create(
        model=model,
        messages=SONG,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    )
    assert json.loads(done.choices[0].message.content)["n"] in (1, 20)
    called = client.chat.completions.create(
        model=model, messages=SONG, tools=[TOOL], tool_choice="required"
    )
    [call] = called.choices[0].message.tool_calls
    assert called.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "add"
    assert json.loads(call.function.arguments)["a"] in (1, 2)
    answered = [
        *SONG,
        called.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "3"},
    ]
    again = client.chat.completions.create(
        model=model, messages=answered, tools=[TOOL], max_tokens=2
    )
    assert again.choices[0].message.role == "assistant"


@pytest.mark.needs("curl")
def test_curl_is_answered(server: str, told: dict[int, str]) -> None:
    body = json.dumps({"messages": SONG, "max_tokens": 12})
    command = ["curl", "-s", server + CHAT, "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == told[12]
    text = httpx.get(f"{server}/metrics").text
    assert re.search(r'draftrt_requests_total\{path="/v1/chat/completions",status="200"\} \d', text)
    assert "draftrt_drafts_total" in text
    httpx.get(f"{server}/some/path/of/nobody")
    text = httpx.get(f"{server}/metrics").text
    assert 'draftrt_requests_total{path="other",status="404"}' in text


def wrong_bodies(num_cut: int) -> Iterator[tuple[bytes, int]]:
    """Bodies that are no requests, some of them cut off at random, each with its status."""
    rng = random.Random(17)
    good = json.dumps({"messages": SONG, "max_tokens": 2}).encode()
    yield from ((body, 400) for body in (b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"[" * 3000))
    yield b"x" * 70000, 413
    yield json.dumps({"messages": SONG, "user": "a" * 70000}).encode(), 413
    for _ in range(num_cut):
        at = rng.randrange(1, len(good) - 1)
        yield good[:at], 400
    values: tuple[Any, ...] = (None, 3, -1, "a", [], {}, True, 1e400, [[]], {"a": {}})
    for field in ("messages", "temperature", "stop", "tools", "response_format", "other", "model"):
        for value in rng.sample(values, 4):
            if (field, value) in (("temperature", 3), ("stop", "a")) or value is None:
                continue
            if (field, value) in (("tools", []), ("stop", [])):
                continue
            status = 404 if field == "model" and value == "a" else 400
            yield json.dumps({"messages": SONG, "max_tokens": 1, field: value}).encode(), status


@pytest.mark.parametrize(
    "count", [20, pytest.param(180, marks=pytest.mark.extended)], ids=["few", "many"]
)
def test_a_wrong_request_is_an_error_of_its_status_and_the_next_one_is_answered(
    server: str, told: dict[int, str], count: int
) -> None:
    with httpx.Client(base_url=server, timeout=WAIT) as http:
        for body, status in wrong_bodies(count):
            answer = http.post(CHAT, content=body)
            assert answer.status_code == status, (body[:200], answer.text)
            error = answer.json()["error"]
            assert error["message"]
            assert error["type"] == "invalid_request_error"
        assert http.get("/none").json()["error"]["message"] == "GET /none: Not Found"
        assert http.get(CHAT).status_code == 405
        long = [{"role": "user", "content": "many words " * 400}]
        for stream in (False, True):
            answer = http.post(CHAT, json={"messages": long, "stream": stream})
            assert answer.status_code == 400
            assert "tokens" in answer.json()["error"]["message"]
        answer = http.post(CHAT, json={"messages": SONG, "max_tokens": 97})
        assert "at most 96" in answer.json()["error"]["message"]
        host = server.removeprefix("http://").partition(":")
        half = socket.create_connection((host[0], int(host[2])))
        half.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n{{".encode())
        answer = http.post(CHAT, json={"messages": SONG, "max_tokens": 12})
        assert answer.json()["choices"][0]["message"]["content"] == told[12]
        half.close()


@pytest.mark.needs("/proc/self/status")
@pytest.mark.parametrize(
    "count", [12, pytest.param(200, marks=pytest.mark.extended)], ids=["few", "many"]
)
def test_clients_that_leave_end_their_answers_and_nothing_leaks(
    bundle: Path, told: dict[int, str], count: int
) -> None:
    rng = random.Random(5)
    with serving(bundle) as (url, process), httpx.Client(base_url=url, timeout=WAIT) as http:

        def memory() -> int:
            status = Path(f"/proc/{process.pid}/status").read_text()
            return int(status.split("VmRSS:")[1].split()[0])

        before = 0
        for number in range(count):
            body = {"messages": SONG, "max_tokens": 40, "stream": True}
            with http.stream("POST", CHAT, json=body) as answer:
                lines = answer.iter_lines()
                for _ in range(rng.randrange(1, 9)):
                    next(lines)
            if rng.random() < 0.5:
                done = http.post(CHAT, json={"messages": SONG, "max_tokens": 24}).json()
                assert done["choices"][0]["message"]["content"] == told[24]
            if number == min(count // 2, 50):
                before = memory()
        idle = {"status": "ok", "busy": False, "waiting": 0}
        until(lambda: http.get("/health").json() == idle)
        assert memory() - before < 16 << 10  # kB


def test_requests_wait_and_too_many_are_told_to_come_again(
    bundle: Path, told: dict[int, str]
) -> None:
    with serving(bundle, "--max-waiting", "1") as (url, _), httpx.Client(timeout=WAIT) as http:

        def ask() -> Any:
            return httpx.post(url + CHAT, json={"messages": SONG, "max_tokens": 40}, timeout=WAIT)

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: ask(), range(36)))
        found = {one.status_code for one in answers}
        assert found <= {200, 429}
        assert 200 in found
        for one in answers:
            if one.status_code == 200:
                assert one.json()["choices"][0]["message"]["content"] == told[40]
            else:
                assert one.json()["error"]["type"] == "rate_limit_error"
                assert one.headers["retry-after"]
        assert http.get(f"{url}/health").json()["status"] == "ok"


def test_a_key_is_asked_for(bundle: Path) -> None:
    with serving(bundle, "--api-key", "secret") as (url, _), httpx.Client(base_url=url) as http:
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "secret"}):
            for path in ("/v1/models", "/metrics"):
                answer = http.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (
                    401,
                    "invalid_api_key",
                )
            assert http.post(CHAT, headers=headers, json={}).status_code == 401
        right = {"Authorization": "Bearer secret"}
        assert http.get("/v1/models", headers=right).status_code == 200
        assert http.get("/health").status_code == 200
        page = http.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert not re.findall(r"(?:src|href)\s*=|https?://|@import|url\(", page.text)


def test_told_to_stop_it_ends_a_running_stream_in_order(bundle: Path, told: dict[int, str]) -> None:
    with serving(bundle) as (url, process):
        body = {"messages": SONG, "max_tokens": 40, "stream": True}
        with httpx.stream("POST", url + CHAT, json=body, timeout=WAIT) as answer:
            lines = answer.iter_lines()
            got = [next(lines)]
            process.send_signal(signal.SIGTERM)
            got += list(lines)
        pieces = [json.loads(one[6:]) for one in got if one.startswith("data: {")]
        said = [one["choices"][0]["delta"].get("content", "") for one in pieces]
        assert "".join(said) == told[40]
        assert got[-2:] == ["data: [DONE]", ""] or "data: [DONE]" in got[-2:]
        assert process.wait() in (143, -signal.SIGTERM)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (["--host", "0.0.0.0"], 2, "give --api-key KEY, or --no-auth"),
        (["--host", "203.0.113.7", "--no-auth"], 1, "203.0.113.7:0: "),
        (["--api-key", "a", "--no-auth"], 2, "exclude each other"),
        (["--api-key", ""], 2, "--api-key is empty"),
        (["--port", "{taken}"], 1, "Address already in use"),
    ],
)
def test_an_address_that_cannot_be_served_is_one_sentence(
    bundle: Path, options: list[str], status: int, says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        words = [
            "serve",
            str(bundle),
            "--port",
            "0",
            *(one.format(taken=number) for one in options),
        ]
        command = [sys.executable, "-m", "draftrt", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "A song of 20 green bags:" }];
const model = (await client.models.list()).data[0].id;
const whole = await client.chat.completions.create({ model, messages, max_tokens: 24 });
let streamed = "";
const wanted = { model, messages, max_tokens: 24, stream: true };
const stream = await client.chat.completions.create(wanted);
for await (const piece of stream) streamed += piece.choices[0]?.delta?.content ?? "";
let refused = 0;
try {
  await client.chat.completions.create({ model, messages, n: 2 });
} catch (error) { refused = error.status; }
console.log(JSON.stringify([whole.choices[0].message.content, streamed, refused]));
"""


@pytest.mark.extended
@pytest.mark.needs("node", "npm")
def test_the_client_of_npm_is_answered(server: str, told: dict[int, str], tmp_path: Path) -> None:
    (tmp_path / "ask.mjs").write_text(NODE)
    (tmp_path / "package.json").write_text("{}")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "openai@6"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(
        ["node", "ask.mjs", server], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [told[24], told[24], 400]

"""The routes of a server: from a request to an answer, and errors in OpenAI's form."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftrt.errors import BackendError, BusyError, DraftrtError
from draftrt.runtime.pair import Pair
from draftrt.runtime.server.answers import Answer
from draftrt.runtime.server.calls import form_of, is_thinking
from draftrt.runtime.server.metrics import Metrics
from draftrt.runtime.server.prompts import (
    decode_options,
    grammar_of,
    template_messages,
    template_variables,
)
from draftrt.runtime.server.schema import ChatRequest, CompletionRequest, Decoding
from draftrt.runtime.server.worker import FullError, Item, Job, Worker

PAGE = Path(__file__).parent / "page.html"
R = TypeVar("R", bound=Decoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server takes.

    Attributes:
        most_waiting: requests that wait for their turn.
        most_tokens: new tokens of one answer.
        most_bytes: of a request's body.
        api_key: that every request but the page's and ``/health`` brings; None: none.
    """

    most_waiting: int = 8
    most_tokens: int = 4096
    most_bytes: int = 4 << 20
    api_key: str | None = None


class RequestError(Exception):
    """An answer that is an error: its status, and what is wrong."""

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def error_of(status: int, message: str, code: str | None = None) -> JSONResponse:
    """Return an error in OpenAI's form."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    content = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse(content, status, headers)


def make_app(pair: Pair, name: str, limits: Limits) -> Starlette:
    """Return the application over a loaded pair.

    Args:
        pair: decodes; the caller closes it behind the application.
        name: of the model.
        limits: what is taken.
    """
    service = Service(pair, name, limits)
    routes = [
        Route("/", service.page),
        Route("/health", service.health),
        Route("/metrics", service.metrics),
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.model),
        Route("/v1/chat/completions", service.chat, methods=["POST"]),
        Route("/v1/completions", service.complete, methods=["POST"]),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.worker.close)

    handlers = {
        HTTPException: _http_error,
        RequestError: _request_error,
        DraftrtError: _draftrt_error,
        ClientDisconnect: _left,
    }
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)  # type: ignore[arg-type]
    app.add_middleware(Counting, metrics=service.counters, paths={route.path for route in routes})
    return app


class Counting:
    """Counts answers by path and status; paths that there are not are one."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: set[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and count."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self._paths else "other"
                self._metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted if scope["type"] == "http" else send)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return error_of(error.status_code, f"{request.method} {request.url.path}: {error.detail}")


async def _request_error(request: Request, error: RequestError) -> Response:
    return error_of(error.status, str(error), error.code)


async def _draftrt_error(request: Request, error: DraftrtError) -> Response:
    return error_of(_status(error), str(error))


async def _left(request: Request, error: ClientDisconnect) -> Response:
    return error_of(400, "the client left")


def _status(error: DraftrtError) -> int:
    if isinstance(error, BusyError):
        return 503
    return 500 if isinstance(error, BackendError) else 400


class Service:
    """The answers of a server.

    Attributes:
        worker: decodes.
        counters: what it counts.
    """

    def __init__(self, pair: Pair, name: str, limits: Limits) -> None:
        self._pair, self._name, self._limits = pair, name, limits
        self.counters = Metrics()
        self._encoding = asyncio.Lock()
        self.worker = Worker(pair, limits.most_waiting)
        templates = pair.template.templates
        self._form = form_of("".join(templates.values()))

    async def page(self, request: Request) -> Response:
        """``/``: the page."""
        return FileResponse(PAGE, media_type="text/html; charset=utf-8")

    async def health(self, request: Request) -> Response:
        """``/health``."""
        told = {"status": "ok", "busy": self.worker.is_busy, "waiting": self.worker.waiting}
        return JSONResponse(told)

    async def metrics(self, request: Request) -> Response:
        """``/metrics``."""
        self._check_key(request)
        media_type = "text/plain; version=0.0.4; charset=utf-8"
        return Response(self.counters.text(self.worker.waiting), media_type=media_type)

    async def models(self, request: Request) -> Response:
        """``/v1/models``."""
        self._check_key(request)
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def model(self, request: Request) -> Response:
        """``/v1/models/NAME``."""
        self._check_key(request)
        self._check_model(request.path_params["name"])
        return JSONResponse(self._about())

    def _about(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "object": "model",
            "created": 0,
            "owned_by": "draftrt",
            "max_model_len": self._pair.decoder.most_tokens,
        }

    async def chat(self, request: Request) -> Response:
        """``/v1/chat/completions``."""
        wanted = await self._read(request, ChatRequest)
        messages = template_messages(wanted.messages)
        variables = template_variables(wanted)
        async with self._encoding:  # the template's process answers one question at a time
            ids = await asyncio.to_thread(self._pair.encode, messages, variables)
            text = await asyncio.to_thread(self._pair.template.render, messages, variables or {})
        has_calls = bool(wanted.tools) and wanted.tool_choice != "none"
        is_forced = has_calls and wanted.tool_choice not in (None, "auto")
        form = "llama" if is_forced and self._form == "gemma" else self._form
        answer = Answer(
            model=self._name,
            prompt_tokens=len(ids),
            is_chat=True,
            name=self._pair.token_text,
            form=form if has_calls else None,
            is_thinking=is_thinking(text),
        )
        return await self._answer(request, wanted, ids, answer, grammar_of(wanted, form))

    async def complete(self, request: Request) -> Response:
        """``/v1/completions``."""
        wanted = await self._read(request, CompletionRequest)
        if isinstance(wanted.prompt, str):
            async with self._encoding:
                ids = await asyncio.to_thread(self._pair.encode, wanted.prompt)
        else:
            ids = tuple(one for one in wanted.prompt if isinstance(one, int))
        answer = Answer(
            model=self._name, prompt_tokens=len(ids), is_chat=False, name=self._pair.token_text
        )
        return await self._answer(request, wanted, ids, answer, None)

    async def _read(self, request: Request, kind: type[R]) -> R:
        self._check_key(request)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._limits.most_bytes:
                raise RequestError(413, f"the body has more than {self._limits.most_bytes} bytes")
        try:
            found = kind.model_validate(json.loads(bytes(body)))
        except ValidationError as error:
            raise RequestError(400, _told(error)) from error
        except (ValueError, RecursionError) as error:
            raise RequestError(400, f"the body is no JSON: {error}") from error
        if found.model is not None:
            self._check_model(found.model)
        return found

    def _check_key(self, request: Request) -> None:
        if (key := self._limits.api_key) is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            raise RequestError(
                401,
                "no valid API key: expected 'Authorization: Bearer KEY'",
                code="invalid_api_key",
            )

    def _check_model(self, name: str) -> None:
        if name != self._name:
            raise RequestError(
                404, f"no model {name!r:.200}, there is {self._name!r}", code="model_not_found"
            )

    async def _answer(
        self, request: Request, wanted: Decoding, ids: tuple[int, ...], answer: Answer, grammar: Any
    ) -> Response:
        options = decode_options(wanted, self._limits.most_tokens)
        if options.max_tokens is None:
            room = self._pair.decoder.most_tokens - len(ids)
            options = replace(options, max_tokens=max(min(room, self._limits.most_tokens), 1))
        items: asyncio.Queue[Item] = asyncio.Queue()
        job = Job(
            prompt_ids=ids,
            options=options,
            stop=tuple(wanted.stop or ()),
            grammar=grammar,
            speculate=not wanted.draftrt_plain,
            give=_into(items, asyncio.get_running_loop()),
        )
        try:
            self.worker.submit(job)
        except FullError:
            raise RequestError(
                429, f"{self.worker.waiting} requests wait already; try again later"
            ) from None
        if not wanted.stream:
            return await self._whole(request, job, items, answer)
        has_usage = bool(wanted.stream_options and wanted.stream_options.include_usage)
        gone = asyncio.create_task(_disconnected(request))
        try:
            first = await _next(items, gone)  # what is wrong with a request is told by its status
        except BaseException:
            job.left.set()
            raise
        finally:
            gone.cancel()
        if isinstance(first, DraftrtError):
            raise first
        pieces = self._pieces(job, first, items, answer, has_usage=has_usage)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(pieces, media_type="text/event-stream", headers=headers)

    async def _whole(
        self, request: Request, job: Job, items: asyncio.Queue[Item], answer: Answer
    ) -> Response:
        gone = asyncio.create_task(_disconnected(request))
        try:
            while (item := await _next(items, gone)) is not None:
                if isinstance(item, DraftrtError):
                    raise item
                for _ in answer.take(item):
                    pass
            self.counters.note(answer.prompt_tokens, answer.stats)
            return JSONResponse(answer.whole())
        finally:
            job.left.set()
            gone.cancel()

    async def _pieces(
        self,
        job: Job,
        item: Item,
        items: asyncio.Queue[Item],
        answer: Answer,
        *,
        has_usage: bool,
    ) -> AsyncIterator[str]:
        try:
            if answer.is_chat:
                yield _event(answer.begin())
            while item is not None:
                if isinstance(item, DraftrtError):
                    error = error_of(_status(item), str(item))
                    yield f"data: {bytes(error.body).decode()}\n\n"
                    return
                for piece in answer.take(item):
                    yield _event(piece)
                item = await items.get()
            self.counters.note(answer.prompt_tokens, answer.stats)
            yield _event(answer.end())
            if has_usage:
                yield _event(answer.usage_piece())
            yield "data: [DONE]\n\n"
        finally:
            job.left.set()


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _into(items: asyncio.Queue[Item], loop: asyncio.AbstractEventLoop) -> Callable[[Item], None]:
    """Return what hands items from the decoding thread to a request."""

    def give(item: Item) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(items.put_nowait, item)

    return give


async def _next(items: asyncio.Queue[Item], gone: asyncio.Task[None]) -> Item:
    """Return the next item.

    Raises:
        ClientDisconnect: the client left before it came.
    """
    item = asyncio.create_task(items.get())
    await asyncio.wait({item, gone}, return_when=asyncio.FIRST_COMPLETED)
    if item.done():
        return item.result()
    item.cancel()
    raise ClientDisconnect


async def _disconnected(request: Request) -> None:
    """Return when the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _told(error: ValidationError) -> str:
    """Return what is wrong with a request, field by field."""
    told = []
    for one in error.errors(include_url=False, include_input=False, include_context=False)[:8]:
        place = ".".join(str(part) for part in one["loc"])
        message = one["msg"].removeprefix("Value error, ")
        if one["type"] == "extra_forbidden":
            message = "is not supported"
        told.append(f"{place}: {message}" if place else message)
    return "; ".join(told)

"""``draftrt serve``: a bundle behind OpenAI's schema, and a page to talk with it."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import closing
from pathlib import Path

import click

from draftrt.backends import BACKENDS, require
from draftrt.bundle_files import Verify
from draftrt.cli_options import (
    CheckpointPath,
    InputPath,
    device_option,
    ignore_memory_option,
    named_checkpoints,
    no_verify_option,
    threads_option,
)
from draftrt.errors import BackendError, printable
from draftrt.runtime.load import PORTS, load

PACKAGES = ("starlette", "uvicorn", "pydantic", "prometheus_client")


@click.command("serve")
@click.argument("bundle", type=InputPath())
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one."
)
@click.option("--name", help="Name of the model.  [default: the bundle's folder]")
@click.option(
    "--api-key",
    envvar="DRAFTRT_API_KEY",
    help="Key that requests must bring; also as DRAFTRT_API_KEY.",
)
@click.option("--no-auth", is_flag=True, help="Serve other machines without a key.")
@click.option(
    "--max-waiting",
    type=click.IntRange(0, 1024),
    default=8,
    show_default=True,
    help="Requests that wait for their turn; further ones are refused with 429.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=4096,
    show_default=True,
    help="Most new tokens of an answer.",
)
@click.option(
    "--max-body",
    type=click.IntRange(1024),
    default=4 << 20,
    show_default=True,
    help="Most bytes of a request.",
)
@click.option(
    "--drain",
    type=click.IntRange(0),
    default=30,
    show_default=True,
    help="Seconds that a running answer has to end in when the server is told to stop.",
)
@click.option("--target", type=CheckpointPath(), help="Target's Hugging Face folder.")
@click.option("--target-port", type=click.Choice(PORTS), help="As in draftrt run.")
@click.option("--backend", type=click.Choice(BACKENDS), default=BACKENDS[0], show_default=True)
@device_option
@click.option("--prefix", type=InputPath(), help="File of draftrt run --save-prefix.")
@threads_option
@ignore_memory_option
@no_verify_option
@named_checkpoints("target")
def serve(
    bundle: Path,
    host: str,
    port: int,
    name: str | None,
    api_key: str | None,
    no_auth: bool,
    max_waiting: int,
    max_tokens: int,
    max_body: int,
    drain: int,
    target: Path | None,
    target_port: str | None,
    backend: str,
    device: str,
    prefix: Path | None,
    threads: int,
    ignore_memory: bool,
    verify: Verify,
) -> None:
    """Serve BUNDLE to one person: OpenAI's schema at /v1, a page at /.

    One text is decoded at a time; requests wait for their turn.
    """
    _check_access(host, api_key, no_auth)
    require(*PACKAGES, what="the server", extra="serve")
    from draftrt.runtime.server.app import Limits, make_app

    limits = Limits(
        most_waiting=max_waiting, most_tokens=max_tokens, most_bytes=max_body, api_key=api_key
    )
    with (
        closing(_listening(host, port)) as listener,
        load(
            bundle,
            target=target,
            target_port=target_port,
            backend=backend,
            device=device,
            threads=threads,
            verify=verify is not Verify.NONE,
            prefix=prefix,
            ignore_memory=ignore_memory,
        ) as pair,
    ):
        app = make_app(pair, name or bundle.resolve().name, limits)
        there, number = listener.getsockname()[:2]
        shown = f"[{there}]" if ":" in there else there
        click.echo(f"http://{shown}:{number}/  {printable(str(bundle))}", err=True)
        _run(app, listener, drain)


def _check_access(host: str, api_key: str | None, no_auth: bool) -> None:
    """Refuse to serve other machines without a key, unless that is said."""
    if api_key == "":
        raise click.UsageError("--api-key is empty")
    if api_key is not None and no_auth:
        raise click.UsageError("--api-key and --no-auth exclude each other")
    try:
        is_own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_own = host == "localhost"
    if not is_own and api_key is None and not no_auth:
        raise click.UsageError(
            f"--host {printable(host)}: other machines could use it; give --api-key KEY, or "
            "--no-auth to let everybody in"
        )


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        BackendError: the address is in use, or none of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(found[4][:2], family=found[0])
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BackendError(
            f"{printable(host)}:{port}: {reason}",
            hint="choose another --port, or --port 0 for a free one; --host is an address of this "
            "machine",
        ) from error
    return listener


def _run(app: object, listener: socket.socket, drain: int) -> None:
    """Serve until a signal comes; what runs then may end."""
    import uvicorn

    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=drain,
        timeout_keep_alive=15,
        ws="none",
    )
    uvicorn.Server(config).run(sockets=[listener])

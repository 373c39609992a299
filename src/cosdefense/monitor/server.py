"""The live page of a run: a small read-only web server on the records of its folder."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

from ..catalog.extras import extra_libraries

with extra_libraries("watch", "the live page", "starlette", "uvicorn", "anyio"):
    import anyio
    import uvicorn
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

from .access import Address, Guard, check_token
from .broadcast import Broadcast
from .watched_run import WatchedRun

__all__ = ["Address", "WatchServer"]

INTERVAL = 1.0  # seconds between two looks at the folder
MAX_CONNECTIONS = 100
FILES = {"/": ("watch.html", "text/html"), "/watch.js": ("watch.js", "text/javascript"),
         "/charts.js": ("charts.js", "text/javascript"), "/watch.css": ("watch.css", "text/css")}  # fmt: skip


class WatchServer(uvicorn.Server):
    """Serves the page of one run. `run()` returns after Ctrl-C, or when `should_exit` is set."""

    def __init__(
        self, folder: Path, address: Address, token: str | None = None, *, metrics: bool = False,
        interval: float = INTERVAL,
    ) -> None:  # fmt: skip
        check_token(address, token)
        app = build_app(WatchedRun(folder), token, lambda: self.should_exit, metrics=metrics, interval=interval)
        super().__init__(
            uvicorn.Config(
                app, address.host, address.port, access_log=False, log_level="warning", server_header=False,
                proxy_headers=False, lifespan="on", ws="none", limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=3,
            )
        )  # fmt: skip


def build_app(
    run: WatchedRun, token: str | None, is_stopping: Callable[[], bool], *, metrics: bool, interval: float = INTERVAL
) -> Starlette:
    broadcast, process = Broadcast(run, interval, is_stopping), secrets.token_hex(8)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(broadcast.follow)
            yield
            tasks.cancel_scope.cancel()

    async def events(_: Request) -> Response:
        return StreamingResponse(broadcast.events(), media_type="text/event-stream")

    async def state(request: Request) -> Response:
        version, content = await broadcast.read(WatchedRun.snapshot)
        tag = f'"{process}-{version}"'  # another process counts anew
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(json.dumps(content, allow_nan=False), media_type="application/json", headers={"etag": tag})

    routes = [Route(path, _serve_file(*file)) for path, file in FILES.items()]
    routes += [Route("/events", events), Route("/state.json", state)]
    routes += [Route("/metrics", _serve_metrics(broadcast))] if metrics else []
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token)], lifespan=lifespan)


def _serve_file(name: str, media_type: str) -> Callable[[Request], Response]:
    content = files(__package__).joinpath("page", name).read_bytes()
    if name.endswith(".css"):  # colors and tables look as in a report
        content = files("cosdefense.report").joinpath("page.css").read_bytes() + content
    return lambda _: Response(content, media_type=media_type)


def _serve_metrics(broadcast: Broadcast) -> Callable[[Request], object]:
    with extra_libraries("metrics", "serving metrics", "prometheus_client"):
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    from .prometheus import RunCollector

    def collect(run: WatchedRun) -> bytes:
        registry = CollectorRegistry()
        registry.register(RunCollector(lambda: run.view.monitor if run.view else None))
        return bytes(generate_latest(registry))

    async def metrics(_: Request) -> Response:
        content = (await broadcast.read(collect))[1]
        return Response(content, headers={"content-type": CONTENT_TYPE_LATEST})

    return metrics

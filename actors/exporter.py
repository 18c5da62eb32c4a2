"""One process's metrics for Prometheus, by HTTP: what the machine counts is read when somebody asks, and only then.

Each process has an endpoint of its own. One for each node would have to ask the others there, and would be one more
thing to find and to fail; Ray's own agent gives out what it got ten seconds ago, and not all of it.

The server has a thread of its own. The values are taken on the machine's loop, between two turns, so that they belong
together; made into text they are on the server's thread, so that nobody waits for that.

    /metrics   in the format that the scraper asks for (prometheus-client's)
    /targets   the coordinator's: all endpoints there are, as Prometheus's HTTP service discovery wants them
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import logging
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from cluster.config import Metrics
from cluster.errors import ConfigError
from cluster.figures import Series
from cluster.metrics import Kind

TOKEN_BYTES = 16
"""What a token has at least."""
ANSWER_S = 5.0
"""How long a scrape waits for the machine's turn to end, and for a scraper that sends no request."""
POLL_S = 0.1
AT_ONCE = 4
"""Scrapes; more are told to come later."""

Answer = TypeVar("Answer")

log = logging.getLogger("kittiwake")


def read_token(settings: Metrics) -> bytes | None:
    """Return what scrapers must present; None for nothing. Raises ConfigError, which names the file."""
    if settings.token_file is None:
        return None
    path = Path(settings.token_file).expanduser()
    try:
        mode = path.stat().st_mode
        token = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"metrics.token_file: {path}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"metrics.token_file: {path} can be read by others, its mode should be 0600")
    if len(token) < TOKEN_BYTES:
        raise ConfigError(f"metrics.token_file: {path}: {len(token)} bytes, a token has {TOKEN_BYTES} at least")
    return token


class Exporter:
    """Serves what `series` returns, which is called on the loop that this is made on.

    port:    0, or where it is taken, for any free one.
    host:    where to listen, if the settings do not name an address of this node.
    targets: what /targets answers with, a JSON document, called on the loop as well; it returns None while that is not
             known, and scrapers go by what they have heard before. None for no such page.
    address: `host:port`, as others are to be told.

    Raises: ConfigError about the token; OSError if there is no such address.
    """

    def __init__(
        self,
        settings: Metrics,
        series: Callable[[], Iterable[Series]],
        *,
        host: str,
        port: int = 0,
        targets: Callable[[], bytes | None] | None = None,
    ) -> None:
        self._token = read_token(settings)
        self._loop = asyncio.get_running_loop()
        self._series = series
        self._targets = targets
        self._places = threading.BoundedSemaphore(AT_ONCE)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(self._taken))
        self._metrics_app = make_wsgi_app(registry)
        try:
            self._server = _Server((settings.host, port), _Handler)
        except OSError as error:
            if not port:
                raise
            log.warning("metrics: %s:%d: %s; any free port is taken instead", settings.host, port, error.strerror)
            self._server = _Server((settings.host, 0), _Handler)
        self._server.set_app(self._app)
        bound = self._server.server_address[1]
        everywhere = settings.host in ("0.0.0.0", "::", "")
        named = host if everywhere else settings.host
        self.address = f"[{named}]:{bound}" if ":" in named else f"{named}:{bound}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": POLL_S}, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Serve no more; at once, as far as anybody waits for it, and within POLL_S in fact."""
        threading.Thread(target=self._end, name="metrics-end", daemon=True).start()

    def _end(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # On the server's threads ---------------------------------------------------------------------------------------

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if not self._admits(environ.get("HTTP_AUTHORIZATION", "")):
            return _say(
                start_response, "401 Unauthorized", b"a bearer token is needed\n", ("WWW-Authenticate", "Bearer")
            )
        if environ["REQUEST_METHOD"] != "GET":
            return _say(start_response, "405 Method Not Allowed", b"GET alone\n", ("Allow", "GET"))
        if not self._places.acquire(blocking=False):
            return _say(start_response, "503 Service Unavailable", b"others are being answered\n", ("Retry-After", "1"))
        try:
            match environ["PATH_INFO"]:
                case "/metrics":
                    page: Iterable[bytes] = self._metrics_app(environ, start_response)
                    return page
                case "/targets" if self._targets is not None:
                    document = self._on_loop(self._targets)
                    if document is None:
                        return _say(start_response, "503 Service Unavailable", b"not known yet\n", ("Retry-After", "1"))
                    return _say(start_response, "200 OK", document, content="application/json")
                case _:
                    pages = "/metrics" if self._targets is None else "/metrics and /targets"
                    return _say(start_response, "404 Not Found", f"there is {pages}\n".encode())
        except (concurrent.futures.TimeoutError, RuntimeError) as error:
            log.info("metrics: no answer: %s", error)
            return _say(start_response, "503 Service Unavailable", b"the machine does not answer\n")
        finally:
            self._places.release()

    def _admits(self, authorization: str) -> bool:
        if self._token is None:
            return True
        scheme, _, presented = authorization.partition(" ")
        return hmac.compare_digest(presented.strip().encode(), self._token) and scheme.lower() == "bearer"

    def _taken(self) -> list[Series]:
        return self._on_loop(lambda: list(self._series()))

    def _on_loop(self, function: Callable[[], Answer]) -> Answer:
        answer: concurrent.futures.Future[Answer] = concurrent.futures.Future()

        def run() -> None:
            try:
                answer.set_result(function())
            except Exception as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return answer.result(ANSWER_S)


class _Families(Collector):
    """Makes prometheus-client's families of our series, which come ordered by metric."""

    def __init__(self, taken: Callable[[], list[Series]]) -> None:
        self._taken = taken

    def describe(self) -> Iterable[Family]:
        """Nothing beforehand: what there is depends on the layer."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield the families."""
        family: Family | None = None
        present = None
        for series in self._taken():
            if series.metric is not present:
                if family is not None:
                    yield family
                present = series.metric
                family = _family(series)
            _add(family, series)
        if family is not None:
            yield family


def _family(series: Series) -> Family:
    metric = series.metric
    match metric.kind:
        case Kind.COUNTER:
            return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        case Kind.GAUGE:
            return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(family: Any, series: Series) -> None:
    if series.buckets:
        buckets = [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in series.buckets]
        family.add_metric(series.labels, buckets, series.value)
    else:
        family.add_metric(series.labels, series.value)


def _say(start_response: Any, status: str, body: bytes, *headers: tuple[str, str], content: str = "") -> list[bytes]:
    content = content or "text/plain; charset=utf-8"
    start_response(status, [("Content-Type", content), ("Content-Length", str(len(body))), *headers])
    return [body]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind; without looking up a name for the address, as the base class does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that goes away is no news."""
        log.debug("metrics: a request of %s failed", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = ANSWER_S

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

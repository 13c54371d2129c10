"""The ASGI application: which path is which handler.

`/api/v1/...` is the service, `/emulator/...` the control plane for tests.
"""

from __future__ import annotations

from typing import Any

import msgspec

from . import catalog
from .admission import Order, Refused, admit, check_key
from .control import control
from .delivery import deliver
from .errors import NOT_FOUND, NOT_MANAGEMENT, Reply
from .exchange import Exchange
from .fault_kinds import ALTERED
from .misdelivery import misdeliver
from .state import Emulator

API = "/api/v1/"
CONTROL = "/emulator/"


class App:
    """Raw ASGI, because at thousands of requests a second a framework's share shows."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange(scope, receive, send)
        path = scope["path"]
        if path == "/api/v1/chat/completions" and scope["method"] == "POST":
            await self._complete(exchange)
        elif path.startswith(CONTROL):
            reply = await control(self.emulator, exchange, path.removeprefix(CONTROL))
            await exchange.reply(reply)
        else:
            await exchange.reply(self._read(exchange, path))

    async def _complete(self, exchange: Exchange) -> None:
        """One completion request, from arrival to departure in the books."""
        emulator, books = self.emulator, self.emulator.books
        body = await exchange.body()
        books.arrive()
        outcome, tag, order = "crashed", "", None
        try:
            order = admit(emulator, exchange.bearer(), body)
            tag = order.endpoint.tag
            outcome = await self._serve(exchange, order)
        except Refused as refused:
            outcome = refused.reply.outcome
            await exchange.reply(refused.reply)
        finally:
            if order is not None:
                books.reserved_nano -= order.reserved_nano
            books.leave(outcome, tag)

    async def _serve(self, exchange: Exchange, order: Order) -> str:
        fault = order.fault
        if fault is None or fault.kind in ALTERED:
            return await deliver(self.emulator, exchange, order)
        return await misdeliver(self.emulator, exchange, order, fault)

    def _read(self, exchange: Exchange, path: str) -> Reply:
        emulator = self.emulator
        if not path.startswith(API) or exchange.scope["method"] != "GET":
            return NOT_FOUND
        model, path = emulator.config.model, path.removeprefix(API)
        if path == "models":
            return _json(catalog.models(emulator))
        if path in (
            f"models/{model.id}/endpoints",
            f"models/{model.canonical_slug}/endpoints",
        ):
            return _json(catalog.endpoints(emulator))
        key = exchange.bearer()
        try:
            check_key(emulator.config, key)
        except Refused as refused:
            return refused.reply
        return self._read_own(exchange, path, key)

    def _read_own(self, exchange: Exchange, path: str, key: str) -> Reply:
        """What only the owner of a key may read."""
        emulator = self.emulator
        if path == "key":
            return _json(catalog.key(emulator, key))
        if path == "credits":
            allowed = key in emulator.config.management_keys
            return _json(catalog.credits(emulator)) if allowed else NOT_MANAGEMENT
        if path == "generation":
            found = catalog.generation(emulator, exchange.query.get("id", ""))
            return _json(found) if found else NOT_FOUND
        return NOT_FOUND


def _json(value: Any) -> Reply:
    return Reply(200, msgspec.json.encode(value))

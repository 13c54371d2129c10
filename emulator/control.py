"""The control plane for tests, outside the API: books, top-up, faults, endpoints.

GET  /emulator/books                 totals (`Books.summary`)
GET  /emulator/books/requests        every billed request; ?since=N leaves out the first N
POST /emulator/topup {"usd": 5}      more balance
POST /emulator/faults [{...}, ...]   replace all faults
POST /emulator/endpoints/TAG {...}   change fields of an endpoint (status, price, ...)
"""

from __future__ import annotations

from typing import Any

import msgspec

from .config import Endpoint, Fault, check_fault_endpoints
from .errors import NOT_FOUND, Reply, refuse
from .exchange import Exchange
from .money import nano_of_usd
from .state import Emulator


class TopUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    usd: float


async def control(emulator: Emulator, exchange: Exchange, path: str) -> Reply:
    """The reply to a request on `/emulator/<path>`."""
    if exchange.scope["method"] == "GET":
        return _read(emulator, exchange, path)
    try:
        return _write(emulator, path, await exchange.body())
    except (msgspec.DecodeError, ValueError) as error:
        return refuse(400, str(error))


def _read(emulator: Emulator, exchange: Exchange, path: str) -> Reply:
    if path == "books":
        return _json(emulator.books.summary())
    if path == "books/requests":
        since = int(exchange.query.get("since", "0"))
        return _json([entry.public() for entry in emulator.books.entries[since:]])
    if path == "faults":
        return _json(emulator.faults)
    return NOT_FOUND


def _write(emulator: Emulator, path: str, body: bytes) -> Reply:
    if path == "topup":
        emulator.books.topup(nano_of_usd(msgspec.json.decode(body, type=TopUp).usd))
        return _json(emulator.books.summary())
    if path == "faults":
        faults = msgspec.json.decode(body, type=tuple[Fault, ...])
        check_fault_endpoints(faults, list(emulator.endpoints))
        emulator.set_faults(faults)
        return _json(emulator.faults)
    tag = path.removeprefix("endpoints/")
    if tag in emulator.endpoints and path != tag:
        changes = msgspec.json.decode(body, type=dict[str, Any])
        return _json(_change(emulator, tag, changes))
    return NOT_FOUND


def _change(emulator: Emulator, tag: str, changes: dict[str, Any]) -> Endpoint:
    fields = {**msgspec.to_builtins(emulator.endpoints[tag]), **changes, "tag": tag}
    emulator.endpoints[tag] = msgspec.convert(fields, Endpoint)
    return emulator.endpoints[tag]


def _json(value: Any) -> Reply:
    return Reply(200, msgspec.json.encode(value))

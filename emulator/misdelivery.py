"""What becomes of an order that a fault strikes: errors, bodies that are none, cuts.

None of these is billed.
"""

from __future__ import annotations

import asyncio

import msgspec

from . import fault_bodies, fault_errors, stream, wire
from .admission import Order
from .config import Fault
from .delivery import headers, send_error, waited
from .errors import JSON
from .exchange import EVENTS, Exchange
from .fault_kinds import BODIES, ERRORS
from .state import Emulator, cost

GONE = "disconnected"


async def misdeliver(emulator: Emulator, exchange: Exchange, order: Order, fault: Fault) -> str:
    """Do what the fault does. Returns the outcome's name."""
    exchange.streaming = order.stream
    if fault.after_s and not await linger(emulator, exchange, order, fault.after_s):
        return GONE
    if fault.kind in ERRORS:
        return await send_error(exchange, order, fault_errors.reply_to(fault.kind, scene(order)))
    if fault.kind in BODIES:
        await _send_body(exchange, order, fault.kind)
    elif fault.kind.startswith("hang"):
        return await _hang(emulator, exchange, order, fault)
    elif fault.kind == "reset":
        exchange.reset()
    elif fault.kind == "cut_after_keepalives":
        await _keepalives(exchange, order)
        await exchange.end()
    else:
        return await _cut(emulator, exchange, order, fault)
    return fault.kind


def scene(order: Order) -> fault_errors.Scene:
    fault, endpoint = order.fault, order.endpoint
    return fault_errors.Scene(
        provider_name=endpoint.provider_name,
        model=order.head.model,
        context_length=endpoint.context_length,
        max_tokens=order.prompt.max_tokens,
        retry_after_s=fault.retry_after_s if fault else 0.0,
    )


async def linger(emulator: Emulator, exchange: Exchange, order: Order, seconds: float) -> bool:
    """Keep-alives for so long (0: for ever); False when the client goes."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    tick = emulator.config.keepalive_s or None
    while True:
        left = end - loop.time() if seconds else None
        if left is not None and left <= 0:
            return True
        wait = tick if left is None else min(left, tick or left)
        if not await exchange.pause(wait):
            return False
        if wait == tick:
            await exchange.keepalive(headers(order))


async def _send_body(exchange: Exchange, order: Order, kind: str) -> None:
    body, content_type = fault_bodies.body_of(kind, order.head)
    if order.stream and content_type == JSON and body:
        content_type, body = EVENTS, _as_events(kind, order, body)
    if not exchange.started:
        await exchange.start(200, content_type, headers(order))
    await exchange.end(body)


def _as_events(kind: str, order: Order, body: bytes) -> bytes:
    """The streamed form: an error is a chunk of its own, in one of the two shapes seen."""
    if not kind.startswith("error_200"):
        return b"data: " + body + b"\n\n" + stream.DONE
    error = msgspec.json.decode(body)["error"]
    if kind in ("error_200", "error_200_empty_choices"):
        return stream.COMMENT + stream.error_event(order.head, error)
    return stream.COMMENT + stream.error_event_recorded(order.head, error)


async def _hang(emulator: Emulator, exchange: Exchange, order: Order, fault: Fault) -> str:
    if fault.kind == "hang_silent":
        await exchange.pause(fault.duration_s or None)
    else:
        await exchange.keepalive(headers(order))
        await linger(emulator, exchange, order, fault.duration_s)
    exchange.close()
    return fault.kind


async def _keepalives(exchange: Exchange, order: Order, count: int = 3) -> None:
    for _ in range(count):
        await exchange.keepalive(headers(order))


async def _cut(emulator: Emulator, exchange: Exchange, order: Order, fault: Fault) -> str:
    """A real completion, of which the first part is sent."""
    pending = emulator.backend.begin(order.prompt)
    if not await waited(emulator, exchange, order, pending):
        return GONE
    completion = await pending
    if not exchange.started:
        await exchange.start(200, EVENTS if order.stream else JSON, headers(order))
    if order.stream:
        chunks = stream.pieces(order.head, completion)
        part = b"".join(chunks[: len(chunks) // 2 + 1])
    else:
        body = wire.body(order.head, completion, cost(order.endpoint, completion))
        part = body[: len(body) * 3 // 5]
    if fault.kind == "cut_mid_json":
        await exchange.end(part)
    else:
        await exchange.write(part)
        exchange.close()
    return fault.kind

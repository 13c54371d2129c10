"""From an order to a delivered and billed completion.

Rules of money (facts of the service): a completion is billed when it is made, also if
the client of a plain request has gone; a cancelled stream is billed up to what was
sent, unless the endpoint bills it in full; zero completion tokens and broken-off
generations are free. The cost in the response is the cost in the books.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from . import stream, wire
from .admission import Order
from .completion import Completion, PromptTooLong
from .config import Honesty
from .errors import JSON, Reply
from .exchange import Exchange
from .fault_errors import too_long
from .fault_kinds import FREE
from .fault_text import altered
from .money import Bill
from .state import Emulator, cost

DRIP_S = 5.0
#: Parts of a body that drips; writes of a stream that does not.
PARTS = 20


def headers(order: Order) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"x-generation-id", order.head.id.encode()),)


async def deliver(emulator: Emulator, exchange: Exchange, order: Order) -> str:
    """Generate, bill, send. Returns the outcome's name."""
    pending = emulator.backend.begin(order.prompt)
    here = await waited(emulator, exchange, order, pending)
    try:
        completion = as_served(await pending, order)
    except PromptTooLong as error:
        return await send_error(exchange, order, too_long(*error.args))
    if not here:
        return abandoned(emulator, order, completion, sent_share=0.0)
    if order.stream:
        return await _send_stream(emulator, exchange, order, completion)
    return await _send_plain(emulator, exchange, order, completion)


async def waited(
    emulator: Emulator,
    exchange: Exchange,
    order: Order,
    pending: asyncio.Future[Completion],
) -> bool:
    """Wait for the completion under keep-alives; False when the client has gone."""
    exchange.streaming = order.stream
    if order.stream:
        await exchange.keepalive(headers(order))
    while not pending.done():
        if not await exchange.pause(emulator.config.keepalive_s or None, pending):
            return False
        if not pending.done():
            await exchange.keepalive(headers(order))
    return True


async def send_error(exchange: Exchange, order: Order, reply: Reply) -> str:
    """An error as its status, or inside the 200 that has already begun."""
    if not exchange.started:
        await exchange.reply(reply)
    elif exchange.streaming:
        await exchange.end(b"data: " + reply.body.strip() + b"\n\n" + stream.DONE)
    else:
        await exchange.end(reply.body)
    return reply.outcome


def as_served(completion: Completion, order: Order) -> Completion:
    """The completion as a less than honest endpoint, or a fault, returns it."""
    completion = _counted(completion, order.endpoint.honesty)
    return altered(order.fault.kind, completion) if order.fault else completion


def _counted(completion: Completion, honesty: Honesty) -> Completion:
    if not (honesty.count_offset or honesty.completion_count_offset):
        return completion
    return replace(
        completion,
        prompt_tokens=max(0, completion.prompt_tokens + honesty.count_offset),
        completion_tokens=max(0, completion.completion_tokens + honesty.completion_count_offset),
    )


def abandoned(emulator: Emulator, order: Order, completion: Completion, sent_share: float) -> str:
    """Bill a completion whose client has gone."""
    if order.stream and not order.endpoint.bills_cancelled_streams:
        tokens = int(completion.completion_tokens * sent_share)
        completion = replace(completion, completion_tokens=tokens)
    if _billable(order, completion):
        _charge(emulator, order, completion, delivered=False)
    return "disconnected"


async def _send_plain(
    emulator: Emulator, exchange: Exchange, order: Order, completion: Completion
) -> str:
    body = wire.body(order.head, completion, _bill(order, completion))
    if not exchange.started:
        await exchange.start(200, JSON, headers(order))
    if order.fault and order.fault.kind == "slow_drip":
        size = len(body) // PARTS + 1
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        await _drip(exchange, parts[:-1], order)
        if exchange.gone:
            return abandoned(emulator, order, completion, sent_share=1.0)
        body = parts[-1]
    return await _finish(emulator, exchange, order, completion, body)


async def _send_stream(
    emulator: Emulator, exchange: Exchange, order: Order, completion: Completion
) -> str:
    chunks = stream.pieces(order.head, completion)
    size = len(chunks) // PARTS + 1
    parts = [b"".join(chunks[at : at + size]) for at in range(0, len(chunks), size)]
    sent = await _drip(exchange, parts, order)
    if exchange.gone:
        return abandoned(emulator, order, completion, sent / len(parts))
    end = stream.closing(order.head, completion, _bill(order, completion))
    return await _finish(emulator, exchange, order, completion, b"".join(end))


async def _drip(exchange: Exchange, parts: list[bytes], order: Order) -> int:
    """Write the parts, slowly if the fault says so; how many went out before a disconnect."""
    slow = order.fault is not None and order.fault.kind == "slow_drip"
    duration_s = ((order.fault.duration_s if order.fault else 0) or DRIP_S) if slow else 0.0
    for count, part in enumerate(parts):
        await exchange.write(part)
        if not await exchange.pause(duration_s / len(parts)):
            return count + 1
    return len(parts)


async def _finish(
    emulator: Emulator,
    exchange: Exchange,
    order: Order,
    completion: Completion,
    last: bytes,
) -> str:
    """Write the books, then the last bytes."""
    if _billable(order, completion):
        _charge(emulator, order, completion, exchange.connected)
    await exchange.end(last)
    return order.fault.kind if order.fault else "ok"


def _charge(emulator: Emulator, order: Order, completion: Completion, delivered: bool) -> None:
    key = order.prompt.messages_key
    emulator.charge(key, order.endpoint, order.head, completion, delivered)


def _bill(order: Order, completion: Completion) -> Bill:
    """The cost that the response names: what the books will say."""
    return cost(order.endpoint, completion) if _billable(order, completion) else Bill(0, 0)


def _billable(order: Order, completion: Completion) -> bool:
    free = order.fault is not None and order.fault.kind in FREE
    return completion.completion_tokens > 0 and not free

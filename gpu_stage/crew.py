"""Processes that make samples side by side, each a part at a time.

In: parts, a recipe. Out: events in the order in which they happen. Invariants: a process that
dies costs its part, which is named, and nothing else; all of them end with this one. Processes
are spawned, so that nothing is shared but what is sent.
"""

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from fleet.errors import FleetError
from fleet.process import end_with_parent
from gpu_stage.recipe import Recipe
from gpu_stage.tokenise import Outcome, tokenise


@dataclass(frozen=True)
class Judged:
    """Some rows of a part are judged."""

    part: Path
    rows: int
    tokens: int


@dataclass(frozen=True)
class Finished:
    """A part is done with."""

    part: Path
    outcome: Outcome


@dataclass(frozen=True)
class Failed:
    """A part could not be made."""

    part: Path
    why: str


Event = Judged | Finished | Failed


def make(directory: Path, parts: Sequence[Path], recipe: Recipe, processes: int) -> Iterator[Event]:
    """Make the samples of parts; the largest come first, so that no process is left with one."""
    todo = deque(sorted(parts, key=lambda part: -part.stat().st_size))
    crew: list[_Member] = []
    try:
        while todo or crew:
            while todo and len(crew) < processes:
                crew.append(_Member(directory, recipe, todo.popleft()))
            for connection in wait([member.connection for member in crew]):
                member = next(one for one in crew if one.connection is connection)
                event = member.event()
                yield event
                if not isinstance(event, Judged) and not member.go_on(todo):
                    crew.remove(member)
    finally:
        for member in crew:
            member.kill()


class _Member:
    """One process, and the part that it has."""

    def __init__(self, directory: Path, recipe: Recipe, part: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, directory, recipe), daemon=True)
        self._process.start()
        theirs.close()
        self._give(part)

    def event(self) -> Event:
        try:
            event: Event = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            return Failed(self._part, f"the process that made it ended with {self._status()}")
        return event

    def go_on(self, todo: deque[Path]) -> bool:
        """Take the next part; False when there is none, or this process has ended."""
        if todo and self._process.is_alive():
            self._give(todo.popleft())
            return True
        self.connection.close()
        self._process.join()
        return False

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _give(self, part: Path) -> None:
        self._part = part
        with suppress(BrokenPipeError):  # it has died: `event` says so
            self.connection.send(part)

    def _status(self) -> str:
        code = self._process.exitcode or 0
        return f"{signal.Signals(-code).name}" if code < 0 else f"status {code}"


def _work(connection: Connection, directory: Path, recipe: Recipe) -> None:
    """What a process does: it ends when there is no other part, or nobody who gives one."""
    end_with_parent()
    while True:
        try:
            part: Path = connection.recv()
        except EOFError:
            return
        connection.send(_made(connection, directory, part, recipe))


def _made(connection: Connection, directory: Path, part: Path, recipe: Recipe) -> Event:
    def tell(rows: int, tokens: int) -> None:
        connection.send(Judged(part, rows, tokens))

    try:
        return Finished(part, tokenise(directory, part, recipe, tell))
    except (FleetError, OSError) as error:
        return Failed(part, str(error))

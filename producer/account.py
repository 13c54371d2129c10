"""What OpenRouter says of the account and of the model: balance, usage, endpoints, records.

In: an API root and a key. Out: plain records. Knows nothing of the ledger.
"""

import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import requests

from fleet.errors import FleetError
from fleet.settings import Secret
from producer.endpoints import Endpoint, read_listing

TIMEOUT_S = 20.0


class AccountError(FleetError):
    """OpenRouter does not say what a run must know before it starts."""


class KeyRefused(AccountError):
    """The key may not ask that."""


class NotFound(AccountError):
    """There is no such thing."""


@dataclass(frozen=True)
class Balance:
    """`GET /key`."""

    #: US dollars left: under the key's limit and of the credits, as far as the account says; None:
    #: it says neither.
    remaining_usd: float | None
    #: US dollars that were ever billed on this key.
    usage_usd: float


class Account:
    """Reads from one API root with one key."""

    def __init__(self, base_url: str, api_key: Secret) -> None:
        self.base_url = base_url.rstrip("/")
        self._key = api_key
        self._no_credits = False

    def balance(self) -> Balance:
        """Raises: AccountError, when the key is refused or nothing answers."""
        data = self._get("/key")
        limits = [_usd(data, "/key", "limit_remaining"), self._credits()]
        left = [usd for usd in limits if usd is not None]
        return Balance(min(left, default=None), _usd(data, "/key", "usage") or 0.0)

    def _credits(self) -> float | None:
        """What is left of the account's credits; only a management key is told."""
        if self._no_credits:
            return None
        try:
            data = self._get("/credits")
        except (KeyRefused, NotFound):
            self._no_credits = True
            return None
        total, used = (_usd(data, "/credits", name) for name in ("total_credits", "total_usage"))
        return None if total is None or used is None else total - used

    def generation(self, generation_id: str) -> dict[str, Any] | None:
        """What OpenRouter keeps of one response; None: it does not know it (yet).

        Raises: AccountError.
        """
        try:
            return self._get(f"/generation?id={quote(generation_id)}")
        except NotFound:
            return None

    def endpoints(self, model: str) -> list[Endpoint]:
        """Every endpoint of the model. Raises: AccountError."""
        data = self._get(f"/models/{model}/endpoints")
        return read_listing(data)

    def _get(self, path: str) -> dict[str, Any]:
        url = self.base_url + path
        # The listing is public; without a key it lacks the speeds.
        headers = {"Authorization": f"Bearer {self._key.reveal()}"} if self._key else {}
        try:
            response = requests.get(url, headers=headers, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise AccountError(f"{url} does not answer: {type(error).__name__}") from None
        if response.status_code in (401, 403) and not self._key:
            raise KeyRefused(f"{url} asks for a key: set OPENROUTER_API_KEY")
        if response.status_code in (401, 403):
            raise KeyRefused(f"{url} refuses the key: check OPENROUTER_API_KEY")
        if response.status_code == 404:
            raise NotFound(f"{url}: not found; check run.model and run.base_url")
        try:
            body = response.json()
        except ValueError:
            body = None
        data = body.get("data") if isinstance(body, dict) else None
        if response.status_code != 200 or not isinstance(data, dict):
            raise AccountError(f"{url} answers HTTP {response.status_code}; try again later")
        return data


def _usd(data: dict[str, Any], path: str, name: str) -> float | None:
    """Raises: AccountError, when it is there and no number."""
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise AccountError(f"{path} says {name} = {str(value)[:40]!r}, which is no amount of money")
    return float(value)

"""What OpenRouter says of the account and of the model: the balance and the endpoints.

In: an API root and a key. Out: plain records. Knows nothing of the ledger.
"""

from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

import requests

from fleet.errors import FleetError
from fleet.run_config import Providers
from fleet.settings import Secret

TIMEOUT_S = 20.0


class AccountError(FleetError):
    """OpenRouter does not say what a run must know before it starts."""


class NotFound(AccountError):
    """There is no such thing."""


@dataclass(frozen=True)
class Balance:
    """`GET /key`."""

    #: US dollars left: under the key's limit, else of the credits; None: the account does not say.
    remaining_usd: float | None
    #: US dollars that were ever billed on this key.
    usage_usd: float


@dataclass(frozen=True)
class Endpoint:
    """One provider's offer of the model. Prices in US dollars per token."""

    tag: str
    provider_name: str
    quantization: str
    prompt_usd: float
    completion_usd: float
    max_completion_tokens: int | None

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Account:
    """Reads from one API root with one key."""

    def __init__(self, base_url: str, api_key: Secret) -> None:
        self.base_url = base_url.rstrip("/")
        self._key = api_key
        self._no_credits = False

    def balance(self) -> Balance:
        """Raises: AccountError, when the key is refused or nothing answers."""
        data = self._get("/key")
        remaining = data.get("limit_remaining")
        if remaining is None:
            remaining = self._credits()
        return Balance(
            None if remaining is None else float(remaining), float(data.get("usage") or 0)
        )

    def _credits(self) -> float | None:
        """What is left of the account's credits; only a management key is told."""
        if self._no_credits:
            return None
        try:
            data = self._get("/credits")
            return float(data["total_credits"]) - float(data["total_usage"])
        except (AccountError, KeyError, TypeError, ValueError):
            self._no_credits = True
            return None

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
        return [_endpoint(raw) for raw in data.get("endpoints") or []]

    def _get(self, path: str) -> dict[str, Any]:
        url = self.base_url + path
        headers = {"Authorization": f"Bearer {self._key.reveal()}"}
        try:
            response = requests.get(url, headers=headers, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise AccountError(f"{url} does not answer: {type(error).__name__}") from None
        if response.status_code == 401:
            raise AccountError(f"{url} refuses the key: check OPENROUTER_API_KEY")
        if response.status_code == 404:
            raise NotFound(f"{url}: not found; check run.model and run.base_url")
        try:
            data = response.json().get("data")
        except ValueError:
            data = None
        if response.status_code != 200 or not isinstance(data, dict):
            raise AccountError(f"{url} answers HTTP {response.status_code}; try again later")
        return data


def _endpoint(raw: dict[str, Any]) -> Endpoint:
    pricing = raw.get("pricing") or {}
    return Endpoint(
        tag=str(raw.get("tag") or ""),
        provider_name=str(raw.get("provider_name") or ""),
        quantization=str(raw.get("quantization") or "unknown"),
        prompt_usd=float(pricing.get("prompt") or 0),
        completion_usd=float(pricing.get("completion") or 0),
        max_completion_tokens=raw.get("max_completion_tokens"),
    )


def allowed(endpoints: list[Endpoint], policy: Providers) -> list[Endpoint]:
    """The endpoints that a policy leaves. Raises: AccountError, when it leaves none."""
    kept = [endpoint for endpoint in endpoints if _allows(policy, endpoint)]
    if not kept:
        offers = ", ".join(f"{e.tag} ({e.quantization})" for e in endpoints) or "none"
        raise AccountError(f"[providers] leaves no endpoint of the model; it has: {offers}")
    return kept


def _allows(policy: Providers, endpoint: Endpoint) -> bool:
    names = {endpoint.tag, endpoint.tag.partition("/")[0]}
    if policy.only and not names & set(policy.only):
        return False
    if names & set(policy.ignore):
        return False
    return not policy.quantizations or endpoint.quantization in policy.quantizations

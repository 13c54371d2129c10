"""Which endpoint a request goes to, and what its outcome says of it, on a real Valkey.

No test sleeps: the scripts read the test's clock.
"""

from collections import Counter

import pytest
from ledger_kit import LEASE_S, ClockedLedger, Numbers, claim, commit, feed, money, open_dataset

from fleet.ledger import Ledger
from fleet.snapshot import EndpointCounts
from fleet.transitions import Claim, Failure, Purchase, Refusal, Route, Verdict

CHEAP = Route("cheap/int4", "Cheap", prompt_nusd=400, completion_nusd=2000, start=500)
MIDDLE = Route("middle/int4", "Middle", prompt_nusd=440, completion_nusd=2200, start=500)
DEAR = Route("dear/int4", "Dear", prompt_nusd=600, completion_nusd=3000, start=500)
ALL = [CHEAP, MIDDLE, DEAR]
THROTTLED = Failure("rate limited", "429", "throttled")


class Site:
    """A ledger on the test's clock, with prompts enough."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ClockedLedger(ledger)
        self.now_ms = 0.0
        self._fed = 0
        open_dataset(self.ledger)

    def passes(self, seconds: float) -> None:
        self.now_ms += 1000 * seconds
        self.ledger.tell(self.now_ms)

    def prompt(self) -> str:
        self._fed += 1
        (prompt_id,) = feed(self.ledger, f"p{self._fed}")
        return prompt_id

    def ask(self) -> Claim:
        return claim(self.ledger, self.prompt())

    def refusal(self) -> Refusal:
        got = self.ledger.claim(self.prompt(), "w", LEASE_S)
        assert isinstance(got, Refusal), got
        return got

    def tags(self, count: int) -> Counter[str]:
        """Where the next requests go; each is answered before the next is sent."""
        found: Counter[str] = Counter()
        for _ in range(count):
            held = self.ask()
            found[held.endpoint.tag] += 1
            commit(self.ledger, held)
        return found

    def told(self, tag: str) -> EndpointCounts:
        return {e.tag: e for e in self.ledger.snapshot().endpoints}[tag]

    def break_down(
        self, tag: str, verdict: Verdict = "throttled", retry_after_s: float = 0
    ) -> None:
        """The endpoint refuses whatever comes, until its circuit opens."""
        for _ in range(200):
            held = self.ask()
            if held.endpoint.tag == tag:
                failure = Failure("k", "why", verdict, retry_after_s)
                self.ledger.release(held, 3600, failure)
                if self.told(tag).circuit_open:
                    return
            else:
                commit(self.ledger, held)
        raise AssertionError("the circuit never opened")


@pytest.fixture
def site(ledger: Ledger, numbers: Numbers) -> Site:
    ledger.open({}, numbers | {"concurrency": 2000, "probe_ms": 5000})
    ledger.set_routes(ALL)
    return Site(ledger)


# Routing


def test_the_first_endpoint_gets_all_but_the_share_for_the_others(site: Site) -> None:
    """`cheapest` and `order`: 95 of 100 to the first, the rest in turn to the others."""
    assert site.tags(200) == {"cheap/int4": 190, "middle/int4": 5, "dear/int4": 5}


def test_without_a_share_for_the_others_they_get_nothing(site: Site, numbers: Numbers) -> None:
    """The cheapest alone, as long as it takes requests."""
    site.ledger.open({}, numbers | {"share_for_others": 0})
    assert site.tags(50) == {"cheap/int4": 50}


def test_spread_shares_requests_out_by_weight(site: Site, numbers: Numbers) -> None:
    """Smooth: each endpoint has its part of any stretch of requests."""
    site.ledger.open({}, numbers | {"ranked": 0})
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    site.ledger.set_routes([Route(t, t, 1, 1, weight=w, start=9) for t, w in weights.items()])
    for _ in range(3):
        assert site.tags(10) == {"a": 5, "b": 3, "c": 2}


def test_what_the_first_endpoint_has_no_slot_for_goes_to_the_next(
    site: Site, numbers: Numbers
) -> None:
    """Its limit is full: the load moves on instead of waiting."""
    site.ledger.open({}, numbers | {"share_for_others": 0})
    limited = [Route(r.tag, r.provider, 1, 1, start=3) for r in ALL]
    site.ledger.client.delete(site.ledger.keys.endpoints)
    site.ledger.set_routes(limited)
    held = [site.ask().endpoint.tag for _ in range(9)]
    assert Counter(held) == {"cheap/int4": 3, "middle/int4": 3, "dear/int4": 3}
    assert held[:3] == ["cheap/int4"] * 3
    assert site.refusal().reason == "no endpoint free"


def test_an_endpoint_that_is_off_is_not_asked(site: Site) -> None:
    """The producer took it out of the routes; its counts stay, with the reason."""
    site.tags(40)
    site.ledger.set_routes([MIDDLE, DEAR], off={"cheap/int4": "status -5"})
    assert set(site.tags(40)) == {"middle/int4", "dear/int4"}
    cheap = site.told("cheap/int4")
    assert (cheap.off, cheap.done) == ("status -5", 38)
    site.ledger.set_routes(ALL)
    assert site.tags(20)["cheap/int4"] == 19
    assert site.told("cheap/int4").off == ""


def test_with_no_route_nothing_is_claimed(site: Site) -> None:
    """All endpoints are off: the prompts wait."""
    site.ledger.set_routes([])
    assert site.refusal().reason == "no endpoint free"


def test_a_claim_holds_the_price_of_its_own_endpoint(site: Site) -> None:
    """What may be spent is what that endpoint asks at most, for max_tokens and a token a byte."""
    held = site.ask()
    assert (held.endpoint.provider, held.endpoint.completion_nusd) == ("Cheap", 2000)
    assert money(site.ledger)[3] == len(held.payload) * 400 + 1000 * 2000


# Another attempt under the same claim


def test_a_throttled_request_goes_to_another_endpoint_at_once(site: Site) -> None:
    """Same claim, next endpoint, its price held instead; the failure is booked on the first."""
    held = site.ask()
    again = site.ledger.reroute(held, THROTTLED, LEASE_S, now=True)
    assert isinstance(again, Claim)
    assert again.endpoint.tag != held.endpoint.tag
    assert again.fence == held.fence
    price = int(again.endpoint.completion_nusd)
    most = len(held.payload) * int(again.endpoint.prompt_nusd) + 1000 * price
    assert money(site.ledger)[3] == most
    first, second = site.told(held.endpoint.tag), site.told(again.endpoint.tag)
    assert (first.in_flight, first.throttles, second.in_flight) == (0, 1, 1)
    assert commit(site.ledger, again) == "committed"
    assert money(site.ledger)[1:] == (0, 0, 0)
    assert site.told(again.endpoint.tag).in_flight == 0
    assert site.ledger.snapshot().errors == {"rate limited": 1}


def test_a_failure_told_without_going_on_frees_the_endpoint(site: Site) -> None:
    """Between two attempts a claim is at no endpoint; then any may be next."""
    held = site.ask()
    told = site.ledger.reroute(held, Failure("server failed", "m", "failed"), LEASE_S, now=False)
    assert isinstance(told, Refusal)
    assert site.told(held.endpoint.tag).in_flight == 0
    again = site.ledger.reroute(held, None, LEASE_S, now=True)
    assert isinstance(again, Claim)
    assert site.told(held.endpoint.tag).failures == 1


def test_a_repeated_reroute_changes_nothing(site: Site) -> None:
    """Its reply was lost: the same endpoint is named again, the failure counts once."""
    held = site.ask()
    first = site.ledger.reroute(held, THROTTLED, LEASE_S, now=True)
    assert site.ledger.reroute(held, THROTTLED, LEASE_S, now=True) == first
    assert site.told(held.endpoint.tag).throttles == 1
    assert site.ledger.snapshot().in_flight == 1
    assert sum(e.in_flight for e in site.ledger.snapshot().endpoints) == 1


def test_a_claim_that_is_lost_goes_nowhere(site: Site) -> None:
    """It expired and another worker has the prompt."""
    held = site.ledger.claim(site.prompt(), "w", 0)
    assert isinstance(held, Claim)
    site.passes(1)
    site.ledger.resend(9, 0)
    lost = site.ledger.reroute(held, THROTTLED, LEASE_S, now=True)
    assert isinstance(lost, Refusal)
    assert lost.reason == "lost"
    assert sum(e.in_flight for e in site.ledger.snapshot().endpoints) == 0


def test_a_dearer_endpoint_is_not_taken_beyond_the_cap(site: Site, numbers: Numbers) -> None:
    """The cap holds for the second attempt as for the first."""
    most = 15 * 400 + 1000 * 2000
    site.ledger.open({}, numbers | {"cap": most + 1000})
    held = site.ask()
    assert held.endpoint.tag == "cheap/int4"
    refused = site.ledger.reroute(held, THROTTLED, LEASE_S, now=True)
    assert isinstance(refused, Refusal)
    assert refused.reason == "cap"
    assert money(site.ledger)[3] == most


# Circuits


@pytest.mark.parametrize("verdict", ["throttled", "overloaded", "failed"])
def test_an_endpoint_that_refuses_loses_its_traffic(site: Site, verdict: Verdict) -> None:
    """After a few refusals nothing is asked there, and the others have all of it."""
    site.passes(10)
    site.break_down("cheap/int4", verdict)
    assert "cheap/int4" not in site.tags(100)
    assert site.told("cheap/int4").last_error == "why"
    assert not site.ledger.snapshot().breaker_open


def test_old_answers_do_not_keep_a_refusing_endpoint_in_use(site: Site) -> None:
    """What was sent before it turned still succeeds; what is sent now says how it is now."""
    old = [site.ask() for _ in range(100)]
    site.passes(10)
    site.ledger.pace("w", capacity=1, in_flight=0)  # a new window
    asked = 0
    for held in [h for h in old if h.endpoint.tag == "cheap/int4"]:
        commit(site.ledger, held)
        new = site.ask()
        if new.endpoint.tag == "cheap/int4":
            asked += 1
            site.ledger.release(new, 3600, THROTTLED)
    assert asked == 8


def test_a_fifth_of_the_answers_throttled_opens_no_circuit(site: Site) -> None:
    """That is a limit to keep below, not an endpoint to leave."""
    site.passes(10)
    flying = [site.ask() for _ in range(50)]
    for n in range(400):
        held = flying.pop(0)
        flying.append(site.ask())
        if n % 5 == 0:
            site.ledger.release(held, 3600, THROTTLED)
        else:
            commit(site.ledger, held)
        site.passes(0.05)
        site.ledger.pace("w", capacity=50, in_flight=50)
    assert not any(e.circuit_open for e in site.ledger.snapshot().endpoints)


def test_a_limit_of_the_account_opens_no_circuit(site: Site) -> None:
    """The in-flight budget lowers the limit, and no endpoint is to blame."""
    for _ in range(30):
        site.ledger.release(site.ask(), 3600, Failure("in flight budget", "m", "account"))
    assert not any(e.circuit_open for e in site.ledger.snapshot().endpoints)


def test_an_endpoint_is_probed_and_regains_its_traffic(site: Site) -> None:
    """After its rest one request goes there; its success closes the circuit."""
    site.break_down("cheap/int4")
    site.passes(1.1)
    probes = [site.ask() for _ in range(20)]
    (probe,) = [held for held in probes if held.endpoint.tag == "cheap/int4"]
    assert commit(site.ledger, probe) == "committed"
    assert not site.told("cheap/int4").circuit_open
    assert site.tags(20)["cheap/int4"] >= 18


def test_a_probe_that_is_refused_doubles_the_rest(site: Site) -> None:
    """1, 2, 4 … s, up to 5 s for each endpoint there is."""
    site.break_down("cheap/int4")
    for rest_s in (1, 2, 4, 8, 15, 15):
        site.passes(rest_s - 0.1)
        assert "cheap/int4" not in site.tags(30)
        site.passes(0.2)
        (probe,) = [h for h in [site.ask() for _ in range(30)] if h.endpoint.tag == "cheap/int4"]
        site.ledger.release(probe, 3600, THROTTLED)


def test_a_probe_that_is_long_in_answering_does_not_keep_the_circuit_open(site: Site) -> None:
    """A refusal comes at once: what was not refused within the interval was let in."""
    site.break_down("cheap/int4")
    site.passes(1.1)
    while site.ask().endpoint.tag != "cheap/int4":
        pass
    site.passes(5.1)
    site.ask()
    assert not site.told("cheap/int4").circuit_open


def test_a_retry_after_is_the_least_rest(site: Site) -> None:
    """The server says when; a minute at most, for it may be wrong."""
    site.break_down("cheap/int4", retry_after_s=17)
    site.passes(16.9)
    assert "cheap/int4" not in site.tags(50)
    site.passes(0.2)
    assert site.tags(20)["cheap/int4"] > 0
    site.break_down("cheap/int4", retry_after_s=3600)
    site.passes(60.1)
    assert site.tags(20)["cheap/int4"] > 0


def test_with_every_endpoint_down_one_request_probes_every_few_seconds(site: Site) -> None:
    """The whole fleet together; the breaker is open, and one success closes it."""
    for route in ALL:
        site.break_down(route.tag)
    assert site.ledger.snapshot().breaker_open
    assert site.ledger.pace("w", capacity=9, in_flight=0).breaker_open
    times: list[float] = []
    waiting = site.prompt()
    while site.now_ms < 600_000:
        got = site.ledger.claim(waiting, "w", LEASE_S)
        if isinstance(got, Claim):
            times.append(site.now_ms)
            site.ledger.release(got, 0, THROTTLED)
        site.passes(0.25)
    late = [at for at in times if at > 300_000]
    assert 300 / 5 * 0.8 <= len(late) <= 300 / 5 * 1.2
    while isinstance(got := site.ledger.claim(waiting, "w", LEASE_S), Refusal):
        site.passes(0.25)
    commit(site.ledger, got)
    assert not site.ledger.snapshot().breaker_open


def test_the_users_resume_closes_every_circuit(site: Site) -> None:
    """Somebody says that the cause is gone."""
    site.break_down("cheap/int4", retry_after_s=60)
    site.ledger.resume()
    assert site.tags(20)["cheap/int4"] >= 18


# Statistics


def test_latencies_are_kept_as_quantiles(site: Site, numbers: Numbers) -> None:
    """Mean exactly, quantiles within a tenth."""
    site.ledger.open({}, numbers | {"share_for_others": 0})
    for n in range(100):
        held = site.ask()
        seconds = 30.0 if n >= 90 else 2.0
        purchase = Purchase(1, 1, 1, False, held.endpoint.tag, latency_s=seconds)
        site.ledger.commit(held, b"{}", b"", purchase)
    counts = site.told("cheap/int4")
    assert counts.latency_mean_s == pytest.approx(0.9 * 2 + 0.1 * 30)
    assert counts.latency_p50_s == pytest.approx(2, rel=0.1)
    assert counts.latency_p95_s == pytest.approx(30, rel=0.1)


def test_a_failure_is_booked_on_the_endpoint_that_it_names(site: Site) -> None:
    """Where OpenRouter chooses, the answer says who failed; an answer by a stranger counts so."""
    held = site.ask()
    failure = Failure("wrong provider", "m", "failed", endpoint="Fireworks", spent_nusd=7)
    site.ledger.release(held, 0, failure)
    stranger = site.told("Fireworks")
    assert (stranger.failures, stranger.wrong, stranger.done) == (1, 1, 0)
    assert stranger.spent_usd == pytest.approx(7e-9)
    assert site.told("cheap/int4").failures == 0

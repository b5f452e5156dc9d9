"""Rule validation, message texts, channel addresses, and how window values are computed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.alerts.channels import make_channel
from headrace.alerts.messages import MAX_QUEUES_SHOWN, AlertMessage, MessageTransition
from headrace.alerts.rule_values import COARSE_TIER, FINE_TIER, EnvironmentMeasurements, plan_tier_reads
from headrace.alerts.rules import InvalidRule, Rule, RuleMetric, make_rule
from headrace.model.histogram import BUCKETS_PER_DOUBLING, ZERO_BUCKET, count_within
from headrace.model.names import EnvRef
from headrace.warehouse.alert_samples import CarriedGauges, UnknownPeriod, WindowPiece
from headrace.webhook import guard
from headrace.webhook.guard import PUBLIC_ONLY, AddressPolicy, AddressRefused, is_public, resolve_addresses
from headrace.webhook.signing import compute_signature

ENV = EnvRef("acme", "shop", "prod")
GOOD: dict[str, Any] = {"name": "deep", "metric": "BACKLOG", "threshold": 1000}
SLO: dict[str, Any] = {"metric": "SLO", "within_ms": 5000, "objective": 0.99, "threshold": 2}


def test_a_rule_has_the_defaults_that_are_documented() -> None:
    rule = make_rule("r", ENV, GOOD)
    assert (rule.operator, rule.window_s, rule.cooldown_s, rule.for_s) == ("GREATER_THAN", 300, 900, 0)
    assert (rule.queue, rule.enabled, rule.auto_resolve, rule.severity) == (None, True, True, "warning")
    assert make_rule("r", ENV, {**GOOD, "operator": "<"}).operator == "LESS_THAN"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window_s": 0}, "window_s must be a whole number from 5"),
        ({"window_s": 301}, "multiple of 5"),
        ({"window_s": 7205}, "multiple of 60"),
        ({"window_s": 40 * 86400}, "window_s must be"),
        ({"window_s": True}, "window_s must be"),
        ({"cooldown_s": -1}, "cooldown_s must be"),
        ({"for_s": 1.5}, "for_s must be"),
        ({"threshold": math.nan}, "finite"),
        ({"threshold": math.inf}, "finite"),
        ({"threshold": "many"}, "finite"),
        ({"threshold": -1}, "negative"),
        ({"threshold": 0, "operator": "LESS_THAN"}, "can never fire"),
        ({"metric": "ERROR_RATE", "threshold": 5}, "from 0 to 1"),
        ({"metric": "TEMPERATURE"}, "metric must be one of BACKLOG"),
        ({"operator": "=="}, "operator must be one of"),
        ({"percentile": "p42", "metric": "LATENCY"}, "percentile must be one of avg"),
        ({"percentile": "p99"}, "applies only to LATENCY"),
        ({"severity": "awful"}, "severity must be one of"),
        ({"name": ""}, "name is empty"),
        ({"queue": "a\nb"}, "queue holds a control character"),
        ({"enabled": "yes"}, "enabled must be true or false"),
        ({"channels": [1]}, "channels must be"),
        ({"metric": "NO_DATA"}, "no operator or threshold"),
        ({"colour": "red"}, "Unknown rule field.*: colour"),
        ({"within_ms": 5000, "objective": 0.9}, "within_ms and objective applies only to SLO"),
        ({"metric": "SLO"}, "requires within_ms, a whole number.*requires objective"),
        ({"metric": "SLO", "within_ms": 0, "objective": 0.9}, "requires within_ms"),
        ({"metric": "SLO", "within_ms": 5000, "objective": 1}, "a share above 0 and below 1"),
        ({**SLO, "operator": "LESS_THAN"}, "use GREATER_THAN"),
        ({**SLO, "threshold": 100}, "burn rate is 100 if every job starts too late"),
    ],
)
def test_impossible_rules_are_refused_with_the_reason(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRule, match=words):
        make_rule("r", ENV, {**GOOD, **change})


def test_what_a_rule_cannot_do_without() -> None:
    with pytest.raises(InvalidRule, match="requires metric and name"):
        make_rule("r", ENV, {})
    with pytest.raises(InvalidRule, match="requires a threshold"):
        make_rule("r", ENV, {"name": "n", "metric": "BACKLOG"})
    with pytest.raises(InvalidRule, match="omit queue"):
        make_rule("r", ENV, {"name": "n", "metric": "NO_DATA", "queue": "q"})
    assert make_rule("r", ENV, {"name": "n", "metric": "NO_DATA"}).format_condition() == "NO_DATA for 5 min"


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({}, "BACKLOG > 1,000 jobs over 5 min"),
        ({"metric": "LATENCY", "percentile": "p95", "threshold": 250}, "LATENCY p95 > 250 ms over 5 min"),
        ({"metric": "ERROR_RATE", "threshold": 0.125, "window_s": 60}, "ERROR_RATE > 12.5 % over 60 s"),
        ({"metric": "OLDEST_AGE", "threshold": 600_000, "window_s": 7800}, "OLDEST_AGE > 10 min over 2 h 10 min"),
        (SLO, "SLO 99 % within 5 s: burn rate > 2 over 5 min"),
        ({**SLO, "within_ms": 1500, "objective": 0.9995}, "SLO 99.95 % within 1500 ms: burn rate > 2 over 5 min"),
    ],
)
def test_conditions_in_words(fields: dict[str, Any], condition: str) -> None:
    assert make_rule("r", ENV, {**GOOD, **fields}).format_condition() == condition


def test_an_slo_rule_needs_no_threshold_and_explains_its_value() -> None:
    rule = make_rule("r", ENV, {"name": "n", **{key: value for key, value in SLO.items() if key != "threshold"}})
    assert rule.threshold == 1
    assert rule.format_measured(3.25) == "burn rate 3.25, 96.75 % within 5 s"
    assert rule.format_measured(None) == "nothing measured"


# --- Measuring -------------------------------------------------------------------------------------


def make_piece(number: int, highest: int, **more: Any) -> WindowPiece:
    fields: dict[str, Any] = {
        "max_age_ms": 0,
        "oldest_ms": None,
        "dequeues": 0,
        "failures": 0,
        "wait_ms": 0,
        "waits": 0,
    }
    fields |= {"number": number, "max_depth": highest, "depth": highest, "histogram": {}, **more}
    return WindowPiece(**fields)


def measure_values(
    rules: list[Rule], pieces: list[WindowPiece], carried: CarriedGauges | None = None
) -> list[float | None]:
    [cut] = plan_tier_reads(rules)
    found = EnvironmentMeasurements(cut, 10_000, {"q": pieces} if pieces else {}, {"q": carried})
    return [found.compute_values(rule)["q"] for rule in rules]


def make_test_rule(metric: str, window_s: int, **more: Any) -> Rule:
    return make_rule("r", ENV, {**GOOD, "metric": metric, "threshold": 0.5, "window_s": window_s, **more})


def test_each_window_sees_its_own_pieces_and_what_was_left_before() -> None:
    """Pieces: the minute that only the longer window sees, and the last."""
    both = [make_test_rule("BACKLOG", 120), make_test_rule("BACKLOG", 60)]
    assert measure_values(both, [make_piece(1, 500), make_piece(2, 7)]) == [
        500,
        500,
    ]  # 500 is how the last minute began
    assert measure_values(both, [make_piece(1, 500, depth=3), make_piece(2, 7)]) == [500, 7]
    assert measure_values(both, [make_piece(2, 7)], CarriedGauges(90, None)) == [90, 90]
    assert measure_values(both, [], CarriedGauges(90, None)) == [90, 90]
    assert measure_values(both, [], None) == [None, None]


def test_the_oldest_grows_older_while_nothing_happens() -> None:
    one = [make_test_rule("OLDEST_AGE", 60)]
    assert measure_values(one, [], CarriedGauges(5, 9_000_000)) == [1_000_000]
    assert measure_values(one, [make_piece(1, 0)], CarriedGauges(5, 9_000_000)) == [
        940_000
    ]  # as the window began; it drained within
    assert measure_values(one, [make_piece(1, 3, oldest_ms=9_990_000, max_age_ms=4)], CarriedGauges(0, None)) == [
        10_000
    ]
    assert measure_values(one, [], CarriedGauges(0, None)) == [0]


def test_rates_and_waits_are_null_where_nothing_was_measured() -> None:
    some = [
        make_test_rule("LATENCY", 60),
        make_test_rule("LATENCY", 60, percentile="p99"),
        make_test_rule("ERROR_RATE", 60),
    ]
    assert measure_values(some, [], CarriedGauges(5, None)) == [None, None, None]
    busy = make_piece(1, 0, dequeues=10, failures=4, wait_ms=1000, waits=10, histogram={-32768: 10})
    assert measure_values(some, [busy]) == [100.0, 0.0, 0.4]


def test_environments_that_differ_in_thresholds_are_read_alike() -> None:
    assert plan_tier_reads([make_test_rule("BACKLOG", 300)]) == plan_tier_reads(
        [make_test_rule("BACKLOG", 300, threshold=9), make_test_rule("OLDEST_AGE", 300)]
    )
    fine, coarse = plan_tier_reads(
        [
            make_test_rule("LATENCY", 7200),
            make_test_rule("BACKLOG", 7260),
            make_test_rule("LATENCY", 60, percentile="p50"),
        ]
    )
    assert (fine.tier, fine.windows_s, fine.gauges, fine.histograms) == (FINE_TIER, (7200, 60), False, True)
    assert (coarse.tier, coarse.windows_s, coarse.gauges, coarse.histograms) == (COARSE_TIER, (7260,), True, False)
    assert plan_tier_reads([make_rule("r", ENV, {"name": "n", "metric": "NO_DATA"})]) == ()


def test_windows_end_with_the_last_final_bucket() -> None:
    fine, coarse = plan_tier_reads([make_test_rule("BACKLOG", 60), make_test_rule("BACKLOG", 7260)])
    assert (fine.compute_end_s(1_000_007_999), coarse.compute_end_s(1_000_007_999)) == (1_000_005, 999_960)


# --- Messages --------------------------------------------------------------------------------------


def make_transition(queue: str = "emails", **more: Any) -> MessageTransition:
    fields: dict[str, Any] = {"id": "t", "incident": "i", "queue": queue, "value": 1500.0, "at_ms": 60_000}
    fields |= {"since_ms": 0, "reason": None, **more}
    return MessageTransition(**fields)


def test_a_message_says_what_where_how_much_since_when_and_where_to_look() -> None:
    message = AlertMessage("m", "firing", make_rule("r", ENV, GOOD), [make_transition("e mails&x")])
    text = message.render_text("https://hr.example/")
    assert message.title == "[warning] deep: e mails&x"
    assert "acme / shop / prod: BACKLOG > 1,000 jobs over 5 min" in text
    assert "e mails&x: 1,500 jobs, since 1970-01-01 00:00:00 UTC" in text
    assert "https://hr.example/queues/e%20mails%26x?org=acme&project=shop&env=prod&range=30m" in text
    assert "\n  /queues/e%20mails" in message.render_text(None)


def test_a_message_about_many_queues_names_some_and_counts_the_rest() -> None:
    message = AlertMessage(
        "m", "resolved", make_rule("r", ENV, GOOD), [make_transition(f"q{n}", reason="why") for n in range(40)]
    )
    assert message.title == "[resolved] deep: 40 queues"
    assert f"… and {40 - MAX_QUEUES_SHOWN} more queues" in message.render_text(None)
    assert "(why)" in message.render_text(None)
    assert len(message.render_document(None)["transitions"]) == 40


def test_the_signature_covers_time_and_body() -> None:
    made = compute_signature("secret", "1700000000", b"{}")
    # printf '1700000000.{}' | openssl dgst -sha256 -hmac secret
    assert made == "sha256=b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163"
    assert (
        len({made, compute_signature("secret", "1700000001", b"{}"), compute_signature("secret", "1700000000", b"{ }")})
        == 3
    )


# --- Channels --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "::1"),
        *("fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1", "255.255.255.255"),
        *("fec0::1", "3fff::1", "3fff:fff::1", "5f00::1", "168.63.129.16", "192.0.0.192", "64:ff9b::a83f:8110"),
    ],
)
def test_private_addresses_in_every_dress_are_refused(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "::ffff:93.184.216.34"])
def test_public_addresses_are_not(address: str) -> None:
    assert is_public(address)


def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(*_: Any, **__: Any) -> list[Any]:
        return [(2, 1, 6, "", ("93.184.216.34", 443)), (2, 1, 6, "", ("10.0.0.1", 443))]

    monkeypatch.setattr(guard.socket, "getaddrinfo", resolved)
    with pytest.raises(AddressRefused, match=r"10\.0\.0\.1.*alerts\.allowed_hosts"):
        resolve_addresses("rebind.example", 443, PUBLIC_ONLY)
    listed = [AddressPolicy((each,)) for each in ("10.0.0.0/8", "10.0.0.1", "rebind.example")]
    for allowed in (AddressPolicy(allow_private=True), *listed):
        assert resolve_addresses("rebind.example", 443, allowed)[0] == "93.184.216.34"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"type": "pigeon"}, "type must be one of"),
        ({"type": "slack"}, "url must be text"),
        ({"type": "slack", "url": "ftp://x/"}, "must begin with https"),
        ({"type": "webhook", "url": "https://user:pw@x/"}, "must not contain a user name or password"),
        ({"type": "webhook", "url": "https://x/", "secret": "short"}, "16 to 500 printable"),
        ({"type": "webhook", "url": "https://x:99999/"}, "url Port out of range"),
        ({"type": "slack", "url": "https://x/", "to": ["a@b"]}, "unknown field for type slack: to"),
        ({"type": "email", "to": []}, "list of 1 to 20"),
        ({"type": "email", "to": ["a@b.c\r\nBcc: d@e.f"]}, "is not an email address"),
        ({"type": "apprise", "url": "syslog://"}, "acts on the server's own machine"),
        ({"type": "apprise", "url": "mailto://u:p@x"}, "not among the services"),
        ({"type": "apprise", "url": "nothing"}, "must begin with an Apprise scheme"),
    ],
)
def test_impossible_channels_are_refused_with_the_reason(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRule, match=words):
        make_channel("c", ENV, {"name": "n", **given})


def test_what_is_shown_of_a_channel_holds_no_secret() -> None:
    hook, secret = make_channel("c", ENV, {"name": "n", "type": "webhook", "url": "https://x.example:8443/T0KEN?k=1"})
    assert secret is not None
    assert hook.target == "https://x.example:8443/***"
    assert "T0KEN" not in repr(hook)
    assert secret not in repr(hook)
    again, made = make_channel("c", ENV, {"name": "m"}, hook)
    assert (again.config, made, again.name) == (hook.config, None, "m")
    other, _ = make_channel("c", ENV, {"name": "n", "type": "apprise", "url": "tgram://T0KEN/123"})
    assert other.target == "tgram://***"


def test_metrics_are_those_of_the_reference() -> None:
    metrics = ["BACKLOG", "LATENCY", "ERROR_RATE", "OLDEST_AGE", "NO_DATA", "SLO"]
    assert [metric.value for metric in RuleMetric] == metrics


# --- Service level objectives ------------------------------------------------------------------------


def make_histogram(*waits_ms: int) -> dict[int, int]:
    buckets = [ZERO_BUCKET if wait == 0 else math.ceil(BUCKETS_PER_DOUBLING * math.log2(wait)) for wait in waits_ms]
    return dict(Counter(buckets))


def test_only_waits_that_were_certainly_short_enough_are_within() -> None:
    assert count_within(make_histogram(0, 1, 2, 4, 8), 4) == 4
    assert count_within(make_histogram(4096), 4096) == 1
    assert count_within(make_histogram(5000), 5000) == 0  # its bucket ends at 5087 ms
    assert count_within(make_histogram(5000), 5088) == 1
    assert count_within({}, 100) == 0


@given(st.integers(1, 10**7), st.integers(0, 10**7))
def test_within_is_never_too_high_and_4_3_percent_too_low_at_most(limit: int, wait: int) -> None:
    counted = count_within(make_histogram(wait), limit)
    assert not counted or wait <= limit
    assert counted or wait > limit / 1.045


def measure_slo(pieces: list[WindowPiece], unknown: Sequence[UnknownPeriod] = (), **more: Any) -> float | None:
    rule = make_rule("r", ENV, {**GOOD, **SLO, "window_s": 60, **more})
    [cut] = plan_tier_reads([rule])
    assert (cut.slo, cut.gauges, cut.histograms) == (True, True, False)
    return EnvironmentMeasurements(cut, 10_000, {"q": pieces}, {"q": None}, unknown).compute_values(rule)["q"]


def test_a_burn_rate_is_the_late_share_over_the_allowed_share() -> None:
    piece = make_piece(1, 0, known_histogram=make_histogram(*[10] * 90, *[9000] * 10))
    assert measure_slo([piece], objective=0.9) == 1.0
    assert measure_slo([piece], objective=0.99) == pytest.approx(10)
    assert measure_slo([piece], within_ms=10_000) == 0
    assert not make_rule("r", ENV, {**GOOD, **SLO, "objective": 0.9, "threshold": 1}).is_met(1.0)


def test_unknown_time_counts_neither_as_good_nor_as_bad() -> None:
    good = make_piece(1, 0, known_histogram=make_histogram(10), histogram=make_histogram(10, 9000))
    within, before = UnknownPeriod(9_990_000, 9_995_000), UnknownPeriod(9_900_000, 9_939_999)
    assert measure_slo([good], [within]) == 0
    idle = make_piece(1, 0)
    assert measure_slo([idle]) is None
    assert measure_slo([idle], [before]) is None
    assert math.isnan(measure_slo([idle], [within]) or 0)

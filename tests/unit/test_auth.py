"""Who may reach what: the algebra of scopes and levels, and what is checked of keys, cookies and origins."""

from __future__ import annotations

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from headrace.api import sessions
from headrace.api.access import GLOBAL_SCOPE, AccessLevel, Caller, KeyScope
from headrace.api.api_keys import ApiKey, compute_digest, generate_key, parse_key_id
from headrace.api.problems import Problem
from headrace.api.rate_limit import MAX_BUCKETS, RequestRateLimiter
from headrace.errors import InvalidName
from headrace.model.names import EnvRef

names = st.sampled_from(["a", "b", "ü", "a/b", "*"])
refs = st.builds(EnvRef, names, names, names)
scopes = st.one_of(
    st.just(GLOBAL_SCOPE),
    st.builds(KeyScope, names),
    st.builds(KeyScope, names, names),
    st.builds(KeyScope, names, names, names),
)
levels = st.sampled_from(AccessLevel)


def widen_scope(scope: KeyScope) -> KeyScope:
    """Without the last part that it names."""
    if scope.env is not None:
        return KeyScope(scope.org, scope.project)
    return KeyScope(scope.org) if scope.project is not None else GLOBAL_SCOPE


def get_status(by: Caller, asked: tuple[str | None, str | None, str | None], needs: AccessLevel) -> int:
    try:
        ref = by.resolve_environment(*asked, needs)
    except Problem as problem:
        return problem.status_code
    assert by.scope.covers(ref)
    return 200


def caller(scope: KeyScope, level: AccessLevel = AccessLevel.READ) -> Caller:
    return Caller("id", "k", scope, level)


class TestScopes:
    @given(scopes, refs)
    def test_a_wider_scope_covers_all_that_a_narrower_one_does(self, scope: KeyScope, ref: EnvRef) -> None:
        assert not scope.covers(ref) or widen_scope(scope).covers(ref)

    @given(refs, refs)
    def test_a_scope_of_one_environment_covers_it_and_no_other(self, mine: EnvRef, other: EnvRef) -> None:
        scope = KeyScope(mine.org, mine.project, mine.env)
        assert scope.covers(mine)
        assert scope.covers(other) == (other == mine)

    @given(scopes, refs)
    def test_what_two_different_scopes_of_a_depth_cover_is_disjoint(self, scope: KeyScope, ref: EnvRef) -> None:
        other = KeyScope(scope.org and f"{scope.org}!", scope.project, scope.env)
        assert other == scope or not (scope.covers(ref) and other.covers(ref))

    @pytest.mark.parametrize("parts", [(None, "p", None), (None, None, "e"), ("o", None, "e"), (None, "p", "e")])
    def test_no_part_is_left_out(self, parts: tuple[str | None, str | None, str | None]) -> None:
        with pytest.raises(ValueError, match="Invalid scope"):
            KeyScope(*parts)


class TestTenant:
    @given(scopes, levels, levels, st.tuples(*[st.none() | names] * 3))
    def test_nothing_is_reached_beyond_the_scope_or_the_level(
        self, scope: KeyScope, has: AccessLevel, needs: AccessLevel, asked: tuple[str | None, str | None, str | None]
    ) -> None:
        known = [mine or given for mine, given in zip((scope.org, scope.project, scope.env), asked, strict=True)]
        contradicts = any(
            mine is not None and given is not None and mine != given
            for mine, given in zip((scope.org, scope.project, scope.env), asked, strict=True)
        )
        expected = 400 if None in known else 404 if contradicts else 403 if has < needs else 200
        assert get_status(caller(scope, has), asked, needs) == expected

    def test_what_is_missing_is_named(self) -> None:
        with pytest.raises(Problem) as caught:
            caller(KeyScope("acme")).resolve_environment(None, "shop", None)
        assert caught.value.detail.startswith("Missing: env.")

    def test_the_response_for_a_foreign_tenant_does_not_depend_on_the_level(self) -> None:
        said: set[str] = set()
        for level in AccessLevel:
            with pytest.raises(Problem) as caught:
                caller(KeyScope("acme")).resolve_environment("globex", "p", "e", level)
            said.add(f"{caught.value.status_code} {caught.value.detail}")
        assert said == {"404 Environment globex / p / e does not exist or is outside this key's scope."}

    @pytest.mark.parametrize("name", ["", "a\n", "x" * 129])
    def test_names_that_cannot_be_are_refused_before_anything_else(self, name: str) -> None:
        with pytest.raises(InvalidName):
            caller(KeyScope("acme")).resolve_environment(name, "p", "e")

    def test_levels_include_those_below(self) -> None:
        assert AccessLevel.READ < AccessLevel.OPERATE < AccessLevel.ADMIN
        assert [AccessLevel.from_label(level.label) for level in AccessLevel] == list(AccessLevel)


class TestKeys:
    def test_a_text_gives_its_id_and_matches_its_hash_alone(self) -> None:
        text, other = generate_key(), generate_key()
        key = ApiKey(
            id=parse_key_id(text) or "",
            name="k",
            hash=compute_digest(text),
            level="read",
            org=None,
            project=None,
            env=None,
            expires_at=None,
        )
        assert len(key.id) == 12
        assert key.matches(text)
        assert not key.matches(other)
        assert text not in repr(key)

    @pytest.mark.parametrize("text", ["", "hr_", "hr_abc_def", "Bearer x", "hr_" + "g" * 12 + "_" + "0" * 64])
    def test_what_is_no_key_has_no_id(self, text: str) -> None:
        assert parse_key_id(text) is None

    def test_nothing_may_follow_a_key(self) -> None:
        assert parse_key_id(f"{generate_key()}\n") is None


def request(method: str, **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in {"host": "h:1", **headers}.items()]
    return Request(
        {"type": "http", "method": method, "path": "/", "scheme": "http", "headers": raw, "query_string": b""}
    )


class TestOrigins:
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},
            {"sec_fetch_site": "none"},
            {"sec_fetch_site": "cross-site", "origin": "http://h:1"},
            {"origin": "http://evil"},
            {"origin": "https://h:1"},
            {"origin": "null"},
            {"origin": "http://h:1.evil"},
        ],
    )
    def test_a_change_from_elsewhere_is_refused(self, headers: dict[str, str]) -> None:
        with pytest.raises(Problem) as caught:
            sessions.refuse_cross_site(request("POST", **headers))
        assert caught.value.status_code == 403

    @pytest.mark.parametrize("headers", [{"sec_fetch_site": "same-origin"}, {"origin": "http://h:1"}])
    def test_our_own_pages_may(self, headers: dict[str, str]) -> None:
        sessions.refuse_cross_site(request("DELETE", **headers))
        sessions.refuse_cross_site_sign_in(request("POST", **headers))

    def test_reading_needs_no_proof(self) -> None:
        sessions.refuse_cross_site(request("GET", sec_fetch_site="cross-site"))

    def test_a_program_signs_in_without_saying_where_from(self) -> None:
        sessions.refuse_cross_site_sign_in(request("POST"))
        with pytest.raises(Problem):
            sessions.refuse_cross_site_sign_in(request("POST", sec_fetch_site="cross-site"))


class TestRates:
    @given(st.floats(0.1, 100), st.integers(1, 50), st.lists(st.floats(0, 5), max_size=100))
    def test_never_more_than_the_burst_and_what_came_in_since(
        self, per_s: float, burst: int, pauses: list[float]
    ) -> None:
        now = 0.0
        buckets = RequestRateLimiter(per_s, burst, lambda: now)
        allowed = buckets.take("k").allowed + 0
        for pause in pauses:
            now += pause
            allowed += buckets.take("k").allowed
            assert allowed <= burst + now * per_s + 1e-6

    @given(st.floats(0.1, 100), st.integers(1, 50))
    def test_a_request_after_the_stated_wait_is_accepted(self, per_s: float, burst: int) -> None:
        now = 0.0
        buckets = RequestRateLimiter(per_s, burst, lambda: now)
        while (spent := buckets.take("k")).allowed:
            pass
        now += spent.retry_s
        assert buckets.take("k").allowed

    def test_each_has_its_own(self) -> None:
        buckets = RequestRateLimiter(1, 1, lambda: 0.0)
        assert [buckets.take(name).allowed for name in ("a", "a", "b")] == [True, False, True]

    def test_looking_takes_nothing(self) -> None:
        buckets = RequestRateLimiter(1, 1, lambda: 0.0)
        assert [buckets.can_take("a") for _ in range(3)] == [True] * 3

    def test_ever_new_names_do_not_fill_the_memory(self) -> None:
        buckets = RequestRateLimiter(1, 1, lambda: 0.0)
        for number in range(MAX_BUCKETS + 10):
            buckets.take(str(number))
        assert buckets.take("0").allowed  # it was forgotten
        assert not buckets.take(str(MAX_BUCKETS + 9)).allowed

    def test_a_refusal_states_the_wait(self) -> None:
        buckets = RequestRateLimiter(0.5, 1, lambda: 0.0)
        buckets.take("a")
        with pytest.raises(Problem) as caught:
            buckets.take("a").raise_if_exceeded("The key 'a'")
        assert caught.value.status_code == 429
        assert caught.value.headers == {
            **{"Retry-After": "2", "RateLimit-Limit": "1", "RateLimit-Remaining": "0", "RateLimit-Reset": "2"},
        }

"""Who may reach what: the algebra of scopes and levels, and what is checked of keys, cookies and origins."""

from __future__ import annotations

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from headrace.api import sessions
from headrace.api.callers import EVERYTHING, Caller, Level, Scope
from headrace.api.keys import Key, digest, id_of, new_text
from headrace.api.problems import Problem
from headrace.api.rate import MAX_BUCKETS, Buckets
from headrace.errors import InvalidName
from headrace.model.names import EnvRef

names = st.sampled_from(["a", "b", "ü", "a/b", "*"])
refs = st.builds(EnvRef, names, names, names)
scopes = st.one_of(
    st.just(EVERYTHING),
    st.builds(Scope, names),
    st.builds(Scope, names, names),
    st.builds(Scope, names, names, names),
)
levels = st.sampled_from(Level)


def wider(scope: Scope) -> Scope:
    """Without the last part that it names."""
    if scope.env is not None:
        return Scope(scope.org, scope.project)
    return Scope(scope.org) if scope.project is not None else EVERYTHING


def status_of(by: Caller, asked: tuple[str | None, str | None, str | None], needs: Level) -> int:
    try:
        ref = by.tenant(*asked, needs)
    except Problem as problem:
        return problem.status_code
    assert by.sees(ref)
    return 200


def caller(scope: Scope, level: Level = Level.READ) -> Caller:
    return Caller("id", "k", scope, level)


class TestScopes:
    @given(scopes, refs)
    def test_a_wider_scope_covers_all_that_a_narrower_one_does(self, scope: Scope, ref: EnvRef) -> None:
        assert not scope.covers(ref) or wider(scope).covers(ref)

    @given(refs, refs)
    def test_a_scope_of_one_environment_covers_it_and_no_other(self, mine: EnvRef, other: EnvRef) -> None:
        scope = Scope(mine.org, mine.project, mine.env)
        assert scope.covers(mine)
        assert scope.covers(other) == (other == mine)

    @given(scopes, refs)
    def test_what_two_different_scopes_of_a_depth_cover_is_disjoint(self, scope: Scope, ref: EnvRef) -> None:
        other = Scope(scope.org and f"{scope.org}!", scope.project, scope.env)
        assert other == scope or not (scope.covers(ref) and other.covers(ref))

    @pytest.mark.parametrize("parts", [(None, "p", None), (None, None, "e"), ("o", None, "e"), (None, "p", "e")])
    def test_no_part_is_left_out(self, parts: tuple[str | None, str | None, str | None]) -> None:
        with pytest.raises(ValueError, match="Invalid scope"):
            Scope(*parts)


class TestTenant:
    @given(scopes, levels, levels, st.tuples(*[st.none() | names] * 3))
    def test_nothing_is_reached_beyond_the_scope_or_the_level(
        self, scope: Scope, has: Level, needs: Level, asked: tuple[str | None, str | None, str | None]
    ) -> None:
        known = [mine or given for mine, given in zip((scope.org, scope.project, scope.env), asked, strict=True)]
        contradicts = any(
            mine is not None and given is not None and mine != given
            for mine, given in zip((scope.org, scope.project, scope.env), asked, strict=True)
        )
        expected = 400 if None in known else 404 if contradicts else 403 if has < needs else 200
        assert status_of(caller(scope, has), asked, needs) == expected

    def test_what_is_missing_is_named(self) -> None:
        with pytest.raises(Problem) as caught:
            caller(Scope("acme")).tenant(None, "shop", None)
        assert caught.value.detail.startswith("Missing: env.")

    def test_the_words_for_anothers_tenant_do_not_depend_on_the_level(self) -> None:
        said: set[str] = set()
        for level in Level:
            with pytest.raises(Problem) as caught:
                caller(Scope("acme")).tenant("globex", "p", "e", level)
            said.add(f"{caught.value.status_code} {caught.value.detail}")
        assert said == {"404 Environment globex / p / e does not exist or is outside this key's scope."}

    @pytest.mark.parametrize("name", ["", "a\n", "x" * 129])
    def test_names_that_cannot_be_are_refused_before_anything_else(self, name: str) -> None:
        with pytest.raises(InvalidName):
            caller(Scope("acme")).tenant(name, "p", "e")

    def test_levels_include_those_below(self) -> None:
        assert Level.READ < Level.OPERATE < Level.ADMIN
        assert [Level.of(level.word) for level in Level] == list(Level)


class TestKeys:
    def test_a_text_gives_its_id_and_matches_its_hash_alone(self) -> None:
        text, other = new_text(), new_text()
        key = Key(id_of(text) or "", "k", digest(text), None, None, None, "read", None)
        assert len(key.id) == 12
        assert key.is_text(text)
        assert not key.is_text(other)
        assert text not in repr(key)

    @pytest.mark.parametrize("text", ["", "hr_", "hr_abc_def", "Bearer x", "hr_" + "g" * 12 + "_" + "0" * 64])
    def test_what_is_no_key_has_no_id(self, text: str) -> None:
        assert id_of(text) is None

    def test_nothing_may_follow_a_key(self) -> None:
        assert id_of(f"{new_text()}\n") is None


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
            sessions.refuse_foreign(request("POST", **headers))
        assert caught.value.status_code == 403

    @pytest.mark.parametrize("headers", [{"sec_fetch_site": "same-origin"}, {"origin": "http://h:1"}])
    def test_our_own_pages_may(self, headers: dict[str, str]) -> None:
        sessions.refuse_foreign(request("DELETE", **headers))
        sessions.refuse_foreign_sign_in(request("POST", **headers))

    def test_reading_needs_no_proof(self) -> None:
        sessions.refuse_foreign(request("GET", sec_fetch_site="cross-site"))

    def test_a_program_signs_in_without_saying_where_from(self) -> None:
        sessions.refuse_foreign_sign_in(request("POST"))
        with pytest.raises(Problem):
            sessions.refuse_foreign_sign_in(request("POST", sec_fetch_site="cross-site"))


class TestRates:
    @given(st.floats(0.1, 100), st.integers(1, 50), st.lists(st.floats(0, 5), max_size=100))
    def test_never_more_than_the_burst_and_what_came_in_since(
        self, per_s: float, burst: int, pauses: list[float]
    ) -> None:
        now = 0.0
        buckets = Buckets(per_s, burst, lambda: now)
        allowed = buckets.spend("k").allowed + 0
        for pause in pauses:
            now += pause
            allowed += buckets.spend("k").allowed
            assert allowed <= burst + now * per_s + 1e-6

    @given(st.floats(0.1, 100), st.integers(1, 50))
    def test_whoever_waits_as_long_as_told_is_let_in(self, per_s: float, burst: int) -> None:
        now = 0.0
        buckets = Buckets(per_s, burst, lambda: now)
        while (spent := buckets.spend("k")).allowed:
            pass
        now += spent.retry_s
        assert buckets.spend("k").allowed

    def test_each_has_its_own(self) -> None:
        buckets = Buckets(1, 1, lambda: 0.0)
        assert [buckets.spend(name).allowed for name in ("a", "a", "b")] == [True, False, True]

    def test_looking_takes_nothing(self) -> None:
        buckets = Buckets(1, 1, lambda: 0.0)
        assert [buckets.look("a").allowed for _ in range(3)] == [True] * 3

    def test_ever_new_names_do_not_fill_the_memory(self) -> None:
        buckets = Buckets(1, 1, lambda: 0.0)
        for number in range(MAX_BUCKETS + 10):
            buckets.spend(str(number))
        assert buckets.spend("0").allowed  # it was forgotten
        assert not buckets.spend(str(MAX_BUCKETS + 9)).allowed

    def test_a_refusal_says_when(self) -> None:
        buckets = Buckets(0.5, 1, lambda: 0.0)
        buckets.spend("a")
        with pytest.raises(Problem) as caught:
            buckets.spend("a").refuse_excess("The key 'a'")
        assert caught.value.status_code == 429
        assert caught.value.headers == {
            **{"Retry-After": "2", "RateLimit-Limit": "1", "RateLimit-Remaining": "0", "RateLimit-Reset": "2"},
        }

"""The schema as text: requirements for every table and view, on one server and on a cluster."""

from __future__ import annotations

import re

import pytest

from headrace.model.event import COUNT_COLUMN
from headrace.warehouse.migrate import load_migrations, render_schema
from headrace.warehouse.sql import QUERIES, make_points_parts, render_query
from headrace.warehouse.tiers import TABLES

ALL_ALONE = render_schema("history")
ALL_TOGETHER = render_schema("history", "prod-1")
ALONE, TOGETHER = (
    [statement for statement in statements if "ALTER TABLE" not in statement]
    for statements in (ALL_ALONE, ALL_TOGETHER)
)
ALTERATIONS = [statement for statement in ALL_TOGETHER if "ALTER TABLE" in statement]


def strip_comments(statement: str) -> str:
    return re.sub(r"--.*", "", statement)


def named(statement: str) -> str:
    found = re.search(r"CREATE [A-Z ]+ IF NOT EXISTS (\S+)", statement)
    assert found
    return found[1]


@pytest.mark.parametrize("statement", TOGETHER, ids=named)
def test_on_a_cluster_everything_is_created_everywhere(statement: str) -> None:
    assert re.search(r"CREATE (DATABASE|TABLE|MATERIALIZED VIEW) IF NOT EXISTS \S+ ON CLUSTER `prod-1`", statement)
    assert statement.count("ON CLUSTER") == 1


@pytest.mark.parametrize("statement", ALTERATIONS, ids=lambda statement: statement.partition("ALTER ")[2].split()[1])
def test_on_a_cluster_everything_is_altered_everywhere(statement: str) -> None:
    pattern = r"^ALTER TABLE `history`\.(\w+) ON CLUSTER `prod-1` ADD COLUMN IF NOT EXISTS"
    altered = re.search(pattern, statement, re.M)
    assert altered
    assert altered[1] in TABLES, "a view is never altered"
    assert statement.count("ON CLUSTER") == 1


def test_every_table_of_counts_has_a_column_for_each_verb() -> None:
    for table in TABLES:
        [statement] = [each for each in ALONE if named(each) == f"`history`.{table}"]
        if " AS `history`." in statement:  # the columns of another table
            continue
        for column in COUNT_COLUMN.values():
            added = f"ALTER TABLE `history`.{table} ADD COLUMN IF NOT EXISTS {column} UInt64"
            assert re.search(rf"^  {column} +UInt64,$", statement, re.M) or any(added in each for each in ALL_ALONE)


@pytest.mark.parametrize("statement", TOGETHER, ids=named)
def test_on_a_cluster_every_table_is_replicated_and_remembers_tokens_for_a_week(statement: str) -> None:
    text = strip_comments(statement)
    assert "non_replicated" not in text
    engines = re.findall(r"ENGINE = (\w+)\('([^']*)', '([^']*)'\)", text)
    assert len(engines) == len(re.findall(r"\bENGINE\b|MergeTree\b", text)) / 2
    for engine, path, replica in engines:
        table = named(statement).removeprefix("`history`.")
        assert engine.startswith("Replicated")
        assert (path, replica) == (f"/clickhouse/tables/{{shard}}/history/{table}", "{replica}")
    if "deduplication_window" in text:
        assert "replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800" in text


def test_tables_of_a_cluster_have_paths_of_their_own() -> None:
    paths = re.findall(r"'(/clickhouse/[^']+)'", "".join(TOGETHER))
    assert len(paths) == len(set(paths)) == sum("ENGINE" in statement for statement in TOGETHER)


def test_one_server_and_a_cluster_have_the_same_things() -> None:
    assert list(map(named, ALONE)) == list(map(named, TOGETHER))
    assert not any("ON CLUSTER" in statement or "Replicated" in statement for statement in ALL_ALONE)


def test_a_cluster_does_not_change_what_a_file_is_known_by() -> None:
    before = [each.checksum for each in load_migrations()]
    for each in load_migrations():
        each.statements("history", "prod-1")
    assert [each.checksum for each in load_migrations()] == before


def test_everything_that_is_inserted_into_remembers_tokens() -> None:
    made = [statement for statement in ALONE if "ENGINE" in statement and "schema_migrations" not in statement]
    assert len(made) == len(TABLES) + 7
    for statement in made:
        assert "non_replicated_deduplication_window = 10000" in strip_comments(statement), named(statement)


def test_views_pass_generation_0_only() -> None:
    views = [each for each in ALONE if "MATERIALIZED VIEW" in each and "pipeline_coverage" not in named(each)]
    assert len(views) == 11
    for view in views:
        assert re.search(r"WHERE s.generation = 0( AND s.defer_count > 0)?\nGROUP BY", view), named(view)
        assert " AS generation" not in view, named(view)


def test_tiers_are_ordered_by_generation_after_the_bucket() -> None:
    for statement in ALONE:
        if named(statement).removeprefix("`history`.") in TABLES:
            assert re.search(r"ORDER BY \(.*bucket_start, generation\b", statement), named(statement)


OF_GENERATIONS = {"any_rows", "history_windows", "highest_generation", "history_state"}
"""Queries about generations, which do not choose one."""


@pytest.mark.parametrize(
    "name",
    [name for name, text in QUERIES.items() if text.startswith(("SELECT", "WITH")) and name not in OF_GENERATIONS],
)
def test_a_query_of_a_tier_reads_one_generation_and_asks_for_it_once(name: str) -> None:
    """For each read of a tier; queries of other tables have no generation."""
    parts = {"table": "queue_metrics_5s_v1", "value": "1"}
    text = render_query(name, **parts, **make_points_parts(histograms=True, rewritten=True))
    reads = len(re.findall(rf"\b(?:FROM|JOIN) (?:{'|'.join(TABLES)})\b", text))
    assert bool(reads) == ("FROM history_windows_v1" in text)
    assert text.count("FROM history_windows_v1") <= reads
    assert not re.search(r"\{\w+\}", text)
    if "{generation}" in QUERIES[name]:
        streamed = render_query(name, **parts, **make_points_parts(histograms=False, rewritten=False))
        assert "history_windows_v1" not in streamed
        assert "generation = 0" in streamed


def test_a_part_that_is_unknown_is_refused() -> None:
    with pytest.raises(KeyError, match="value"):
        render_query("top_queues", table="t")

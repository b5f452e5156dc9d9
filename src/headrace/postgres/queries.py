"""The queries of this package by name; queries.sql describes them."""

from headrace.model.query_file import load_queries

QUERIES = load_queries("headrace.postgres")

"""A small Django project with tasks, for the tests of the backend."""

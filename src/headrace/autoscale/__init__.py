"""Autoscaling: decide how many workers to run, explain each decision in a sentence, and apply it."""

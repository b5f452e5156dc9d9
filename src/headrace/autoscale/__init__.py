"""Autoscaling: how many workers there should be, decided from what is known and explained in a sentence."""

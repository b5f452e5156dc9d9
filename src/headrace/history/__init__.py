"""Read history: choose the tier, fill gaps, and report how complete the numbers are."""

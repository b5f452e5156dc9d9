"""Read history: choose the resolution at which it is stored (the *history tier*: 5 s, 1 min or 1 h), fill points that
have no rows, and report how complete the numbers are."""

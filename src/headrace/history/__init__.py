"""Reading history: which tier answers, how gaps are filled, whether the numbers can be trusted."""

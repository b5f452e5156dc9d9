"""Types shared by all packages: names, jobs, metric events, histograms. Standard library only; imports no other
headrace package."""

"""Long fault tests, started by `./hr chaos NAME`, and a short test of each."""

from headrace.embedded.valkey import EmbeddedValkey

# They fail over, cut connections and pause clients. `headrace up`, a process of its own, keeps its rules.
EmbeddedValkey.rules = "+@all"

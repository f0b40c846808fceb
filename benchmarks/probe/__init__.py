"""How far our probe and its peers are from the truth, measured in one run; see docs/benchmark-probe.md."""

"""What the benchmarks share: crafted inputs, collectives, launchers, and the cost of the cipher alone."""

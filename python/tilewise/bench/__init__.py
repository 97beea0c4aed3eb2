"""Timings of tilewise beside torch, Triton and others: `python -m tilewise.bench --help`."""

"""Times of tilewise compared with torch, Triton and others: `python -m tilewise.bench --help`."""

# What a shell expects of a command that Ctrl-C ended.
INTERRUPTED = 130
NOTHING_MEASURED = "interrupted: nothing was measured"

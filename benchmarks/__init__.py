"""What the hotfix costs: `python -m benchmarks`, or `make bench`. Ratios measured side by side in one run."""

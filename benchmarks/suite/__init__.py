"""The parts of `python -m benchmarks`: each measures one thing for all contenders, and says which lines it reaches."""

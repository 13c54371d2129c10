"""Measurements of the fleet beside what one would pick instead: `python -m benchmarks`.

Every figure is taken in one run on one machine, against this project's emulator, and reported
as a ratio: the seconds of another machine say little. `README.md` here is written by it.
"""

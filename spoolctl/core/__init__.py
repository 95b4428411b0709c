"""Decisions: what may follow what, when to try again. No I/O, no clock, no SQL."""

"""What a worker does: claim, run, watch, record, and take back what the dead left behind."""

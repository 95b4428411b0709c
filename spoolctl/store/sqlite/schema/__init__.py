"""The layout of the queue's file: numbered migrations, applied in order."""

"""The program's version, alone in its module so that reading it costs nothing."""

__version__ = "0.1.0"
CONTRACT_VERSION = "2"

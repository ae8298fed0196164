"""The version, said once: the build reads it from here, and importing it costs nothing."""

__version__ = "0.1.0"

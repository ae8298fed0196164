"""Version number. The build reads this module, which imports nothing."""

__version__ = "0.1.0"

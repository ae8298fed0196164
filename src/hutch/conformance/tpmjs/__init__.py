"""Tests a TPMJS executor over HTTP: levels 1 and 2 of the specification, and behaviour that the specification
does not define.
"""

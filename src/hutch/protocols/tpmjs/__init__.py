"""TPMJS: runs tools that are published as npm packages."""

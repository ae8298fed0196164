"""The TPMJS door: tools that are npm packages, over HTTP."""

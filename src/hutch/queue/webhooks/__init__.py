"""Webhooks: messages about the ends of runs, signed by the Standard Webhooks specification."""

"""Schedules: runs of flows and saved scripts at times given by cron expressions."""

"""Durable queue: asynchronous runs, webhooks, schedules and triggers."""

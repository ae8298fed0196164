"""Tables of the queue: asynchronous runs, webhooks, schedules and triggers."""

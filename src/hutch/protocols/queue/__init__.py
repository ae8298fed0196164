"""HTTP interface of the queue: dead letters, webhooks, saved scripts, schedules and triggers."""

"""What is kept: users, keys, credentials, abilities, runs. SQLite by default, PostgreSQL by URL."""

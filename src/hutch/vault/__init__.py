"""Vault: users' credentials, API keys, encryption and key rotation."""

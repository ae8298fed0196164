"""npm packages: specs, registry configuration, installer and package store."""

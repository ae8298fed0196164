"""Database: tables, column encryption and migrations."""

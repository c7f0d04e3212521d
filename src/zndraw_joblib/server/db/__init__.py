"""Databases: engines, transactions, tables, migrations."""

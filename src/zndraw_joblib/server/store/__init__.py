"""All SQL, one module per noun. No other package imports SQLAlchemy."""

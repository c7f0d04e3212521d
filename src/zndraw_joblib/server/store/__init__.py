"""All SQL, one module a noun. SQLAlchemy is spoken here and nowhere else."""

"""What the OpenAPI document says about each operation beyond its signature."""

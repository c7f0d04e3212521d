"""The rules, one module per noun: they take lists, decide, and return a result or a problem for each item."""

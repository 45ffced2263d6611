"""The transaction coordinator: opens and ends transactions, and fences producers."""

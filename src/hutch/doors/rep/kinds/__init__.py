"""What a step can do, one module a kind or a family of them."""

"""What answers each address."""

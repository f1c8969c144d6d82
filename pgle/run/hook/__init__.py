"""What runs inside the user's program, and its configuration from outside."""

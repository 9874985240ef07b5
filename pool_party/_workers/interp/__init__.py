"""Workers that are interpreters with their own GIL."""

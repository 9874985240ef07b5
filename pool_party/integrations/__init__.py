"""What lets other libraries run their work in pools. Each module imports its library, and is imported only on request."""

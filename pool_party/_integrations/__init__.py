"""What lets other libraries run their work in pools. Each module is imported, and imports its library, on request."""

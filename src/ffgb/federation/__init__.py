"""The client, the server's loop, and what keeps them in step."""

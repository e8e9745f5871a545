"""Engines move messages between the server and its clients; they know nothing of what the messages mean."""

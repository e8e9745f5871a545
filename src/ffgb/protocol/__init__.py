"""What travels between the server and its clients: messages, their bytes, objects as data, and what it costs."""

"""The paper's algorithm: what a client does, how uploads are averaged, what the server does."""

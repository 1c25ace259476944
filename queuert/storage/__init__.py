"""Connections, SQL files and the repository: everything that talks to a database driver."""

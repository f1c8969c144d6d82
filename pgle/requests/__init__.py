"""The requests of all commands, as types. Every option is a field, declared once."""

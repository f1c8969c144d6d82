"""What each command may be asked, as types: every option is a field, declared once."""

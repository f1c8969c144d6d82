"""Schedules that nobody ran: predicted, rehearsed, and searched for."""

"""What pods ask for, what they hold, and what their annotations say."""

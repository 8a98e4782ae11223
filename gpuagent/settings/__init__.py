"""The settings: one table; a flag beats the environment, which beats the file, which beats the default."""

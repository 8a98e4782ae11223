"""Which containers use how much of each GPU, and what each was guaranteed."""

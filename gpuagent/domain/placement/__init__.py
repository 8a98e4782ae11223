"""Which GPUs a request gets: amounts in, GPU UUIDs out."""

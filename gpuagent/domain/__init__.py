"""Pure core: values and functions. No I/O, no threads, no clock, no logging, no foreign imports."""

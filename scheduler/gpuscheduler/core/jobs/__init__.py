"""Jobs start whole or not at all: the plan of a job's pods over nodes and links, and its states."""

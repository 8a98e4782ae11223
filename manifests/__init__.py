"""What is installed on a cluster: the chart, plain YAML made from it, and what makes it."""

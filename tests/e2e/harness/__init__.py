"""What the end-to-end tests stand on: processes, waiting, a private workspace, clusters, leak checks."""

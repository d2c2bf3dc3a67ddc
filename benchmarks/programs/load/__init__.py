"""A load on the sandbox or on a service of one's own, and whether what the client said of it is true."""

"""What fits the client to other libraries; each module needs an extra of its own."""

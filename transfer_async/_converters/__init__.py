"""From bytes to models and back, exactly. It may know the models."""

"""How things are measured, of what, and how that is told; knows neither programs nor contenders."""

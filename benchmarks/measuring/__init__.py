"""Tools to measure and to report; they import neither programs nor contenders."""

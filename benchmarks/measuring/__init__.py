"""Tools for measuring and reporting. They import neither programs nor contenders."""

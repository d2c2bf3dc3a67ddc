"""Which version this is: said here alone, and read from here when the package is built."""

VERSION = "0.1.0"

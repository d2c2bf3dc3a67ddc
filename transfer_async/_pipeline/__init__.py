"""The life of one order, and the recovery of an order that was interrupted.

This package may import the journal and the exchange with the service.
"""

"""The life of one order, and the recovery of an order that was interrupted.

It may know the journal and the exchange with the service.
"""

"""The way of one order, and what is left when it was cut short.

It may know the journal and the exchange with the service.
"""

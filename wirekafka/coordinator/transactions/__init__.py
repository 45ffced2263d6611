"""Transactions: the coordinator that says which are open, which have ended and how, and who may go on with them."""

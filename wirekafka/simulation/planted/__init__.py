"""Known bugs of brokers and controllers, which a simulation can switch on to show that the checker finds them.

A bug is a few methods and functions that replace those of the product while it is planted (`planting`). The product has no branch
for it.
"""

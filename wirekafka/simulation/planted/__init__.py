"""Known bugs of replication, which a simulation can switch on to show that the checker finds them.

A bug is a few methods that replace those of the product while it is planted (`planting`). The product has no branch for it.
"""

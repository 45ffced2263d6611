"""Support for the tests: brokers in processes, jars, clients with one interface, and a proxy that cuts connections."""

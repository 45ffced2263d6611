"""The support of the tests: brokers as processes, jars, clients with one interface, and a proxy that cuts connections."""

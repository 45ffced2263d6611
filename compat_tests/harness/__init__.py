"""What the tests stand on: brokers as processes, jars, clients behind one interface, a proxy that cuts connections."""

"""HTTP for the small services of a broker: its metrics, and the control port of tests.

`messages` has requests and responses, `server` receives and sends them.

Rules of this room: a broker that serves no HTTP imports nothing of it.
"""

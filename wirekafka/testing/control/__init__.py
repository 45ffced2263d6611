"""The control port: what `EmbeddedBroker` offers to tests in Python, over HTTP for tests in any language.

    async with open_embedded() as broker, open_control(broker, port=0) as url:
        ...                                      # POST {url}/faults

`forms` has what requests and responses hold; `form_reader` reads it. `routes` is the table of requests. `openapi` describes it.
`answers` has the checks and the errors. `port` serves the table on a socket, and `process` does so in `wirekafka serve`.

Rules of this room: a broker without a control port imports nothing of it.
"""

"""Metrics of a running broker in the text format of Prometheus, over HTTP (`wirekafka.metrics.listener`).

`text` writes the format, `request_meter` counts requests, `broker_metrics` reads everything else when it is asked for, `endpoint`
serves HTTP.

Rules of this room: without the setting nothing of it is imported, and no request is slower. The number of time series does not
grow with topics, partitions or clients.
"""

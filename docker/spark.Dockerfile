# The pipelines of wirekafka on Spark, for docker/spark.compose.yaml: wirekafka, PySpark, Java 17, and Spark's connector for Kafka.
#
#     docker build -f docker/spark.Dockerfile -t wirekafka-spark .
#     docker run wirekafka-spark ingest --help
#
# The build fetches packages of Debian and of PyPI, and jars of Maven Central. The arguments are settings of pip, as in Dockerfile.

FROM python:3.11-slim-bookworm AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
RUN apt-get update -q \
    && apt-get install -y -q --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY wirekafka wirekafka
RUN for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST; do \
        eval "[ -n \"\$$name\" ]" || unset "$name"; \
    done \
    && python -m venv --without-pip /opt/wirekafka \
    && pip --python /opt/wirekafka/bin/python install --quiet --no-cache-dir '.[spark]' 'pyspark==4.0.0'
# Spark fetches its connector. Ivy puts the group before the name of each jar, and an underscore.
RUN /opt/wirekafka/bin/python -c 'from wirekafka.pipelines.session import Connector, SessionOptions, open_session; \
        open_session("fetch", frozenset({Connector.KAFKA}), SessionOptions(conf={"spark.jars.ivy": "/ivy"})).stop()' \
    && install --directory /opt/jars \
    && for jar in /ivy/jars/*.jar; do name=${jar##*/}; mv "$jar" "/opt/jars/${name#*_}"; done

FROM python:3.11-slim-bookworm
RUN apt-get update -q \
    && apt-get install -y -q --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 wirekafka \
    && useradd --uid 1000 --gid wirekafka --no-create-home --home-dir /tmp --shell /usr/sbin/nologin wirekafka \
    && install --directory --owner=wirekafka --group=wirekafka /lake
COPY --from=build /opt/wirekafka /opt/wirekafka
COPY --from=build /opt/jars /opt/jars
ENV PATH=/opt/wirekafka/bin:$PATH PYTHONUNBUFFERED=1
USER 1000
WORKDIR /tmp
VOLUME /lake
EXPOSE 4040
ENTRYPOINT ["wirekafka", "pipeline"]

# ZooKeeper 3.8 of Debian, for docker/compose.yaml. It keeps its data in the volume /var/lib/zookeeper.
#
# Any other ZooKeeper 3.5 or later does as well, for example the official image: ZOOKEEPER_IMAGE=zookeeper:3.9 docker compose up

FROM python:3.11-slim-bookworm
RUN apt-get update -q \
    && apt-get install -y -q --no-install-recommends default-jre-headless libzookeeper-java liblog4j1.2-java libslf4j-java \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 zookeeper \
    && useradd --uid 1000 --gid zookeeper --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin zookeeper \
    && install --directory --owner=zookeeper --group=zookeeper /var/lib/zookeeper \
    && install --directory /etc/zookeeper \
    && printf '%s\n' \
        tickTime=2000 \
        dataDir=/var/lib/zookeeper \
        clientPort=2181 \
        maxClientCnxns=0 \
        admin.enableServer=false \
        4lw.commands.whitelist=ruok,srvr \
        autopurge.snapRetainCount=3 \
        autopurge.purgeInterval=24 \
        > /etc/zookeeper/zoo.cfg \
    && printf '%s\n' \
        log4j.rootLogger=WARN,console \
        log4j.appender.console=org.apache.log4j.ConsoleAppender \
        log4j.appender.console.layout=org.apache.log4j.PatternLayout \
        'log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} %m%n' \
        > /etc/zookeeper/log4j.properties
USER zookeeper
VOLUME /var/lib/zookeeper
EXPOSE 2181
ENTRYPOINT ["java", "-Xmx256m", "-cp", "/etc/zookeeper:/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-log4j12.jar:/usr/share/java/log4j-1.2.jar", "org.apache.zookeeper.server.quorum.QuorumPeerMain", "/etc/zookeeper/zoo.cfg"]

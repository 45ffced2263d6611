import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;

/**
 * Counts the records of each key in a state store and writes every count, exactly once (exactly_once_v2), until it is killed.
 * Arguments: bootstrap servers, application id, source, target, directory of the state.
 */
public final class CountingApp {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", arguments[4]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("default.key.serde", Serdes.String().getClass().getName());
        settings.put("default.value.serde", Serdes.String().getClass().getName());
        settings.put("num.stream.threads", "1");
        settings.put("commit.interval.ms", "100");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("auto.offset.reset", "earliest");
        settings.put("reconnect.backoff.ms", "10");
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("main.consumer.session.timeout.ms", "3000");
        settings.put("main.consumer.heartbeat.interval.ms", "500");
        settings.put("producer.transaction.timeout.ms", "10000");
        settings.put("producer.delivery.timeout.ms", "10000");
        settings.put("producer.request.timeout.ms", "5000");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[2])
            .groupByKey()
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(arguments[3]);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.ERROR) {
                Runtime.getRuntime().halt(1);
            }
        });
        streams.start();
        Thread.sleep(Long.MAX_VALUE);
    }
}

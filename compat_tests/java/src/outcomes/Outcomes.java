import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * The jobs of tools/client_outcomes in the Java client.
 *
 * The arguments are the topic, the group, the transactional id, and the timeouts: of a request, of a delivery, of a job, in
 * milliseconds. A line on stdin is a job, the bootstrap servers and a count, separated by tabs. The answer is one line: the
 * error, or nothing, and the values that were read.
 */
public final class Outcomes {
    interface Step {
        void run() throws Exception;
    }

    static final String GIVEN_UP = "GIVEN_UP";

    static String topic;
    static String group;
    static String transactionalId;
    static String requestTimeoutMs;
    static String deliveryTimeoutMs;
    static long mostMs;

    public static void main(String[] arguments) throws Exception {
        topic = arguments[0];
        group = arguments[1];
        transactionalId = arguments[2];
        requestTimeoutMs = arguments[3];
        deliveryTimeoutMs = arguments[4];
        mostMs = Long.parseLong(arguments[5]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            List<String> values = new ArrayList<>();
            String error = run(words[0], words[1], Integer.parseInt(words[2]), values);
            System.out.println(error + "\t" + String.join(",", values));
            System.out.flush();
        }
        System.exit(0);
    }

    static String run(String job, String bootstrap, int count, List<String> values) throws Exception {
        switch (job) {
            case "write":
                return write(bootstrap);
            case "transact":
                return transact(bootstrap);
            default:
                return read(bootstrap, count, values, job.equals("join"));
        }
    }

    static String write(String bootstrap) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, new Properties())) {
            send(producer);
            return "";
        } catch (KafkaException error) {
            return "raises " + nameOf(error);
        } catch (TimeoutException error) {
            return GIVEN_UP;
        }
    }

    static void send(KafkaProducer<byte[], byte[]> producer) throws Exception {
        try {
            producer.send(new ProducerRecord<>(topic, "one".getBytes(StandardCharsets.UTF_8))).get(mostMs, TimeUnit.MILLISECONDS);
        } catch (ExecutionException error) {
            if (error.getCause() instanceof KafkaException) {
                throw (KafkaException) error.getCause();
            }
            throw error;
        }
    }

    static String read(String bootstrap, int count, List<String> values, boolean isMember) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("request.timeout.ms", requestTimeoutMs);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        if (isMember) {
            settings.put("group.id", group);
        }
        long deadline = System.currentTimeMillis() + mostMs;
        String step = "poll";
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            if (isMember) {
                consumer.subscribe(List.of(topic));
            } else {
                consumer.assign(List.of(new TopicPartition(topic, 0)));
            }
            while (new LinkedHashSet<>(values).size() < count) {
                if (System.currentTimeMillis() > deadline) {
                    return GIVEN_UP;
                }
                step = "poll";
                ConsumerRecords<String, String> polled = consumer.poll(Duration.ofSeconds(1));
                for (ConsumerRecord<String, String> record : polled) {
                    values.add(record.value());
                }
                if (isMember && !polled.isEmpty()) {
                    step = "commit";
                    consumer.commitSync();
                }
            }
            step = "close";
        } catch (KafkaException error) {
            return step + " raises " + nameOf(error);
        }
        return "";
    }

    static String transact(String bootstrap) throws Exception {
        Properties settings = new Properties();
        settings.put("transactional.id", transactionalId);
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, settings)) {
            String error = told("init", producer::initTransactions);
            if (!error.isEmpty()) {
                return error;
            }
            error = told("send", () -> {
                producer.beginTransaction();
                send(producer);
            });
            if (error.isEmpty()) {
                error = told("commit", producer::commitTransaction);
            }
            if (error.isEmpty() || error.equals(GIVEN_UP)) {
                return error;
            }
            String failed = told("abort", producer::abortTransaction);
            return error + ", " + (failed.isEmpty() ? "abort works" : "and so does abort: " + failed.replace("abort raises ", ""));
        }
    }

    static String told(String name, Step step) throws Exception {
        try {
            step.run();
            return "";
        } catch (KafkaException error) {
            return name + " raises " + nameOf(error);
        } catch (TimeoutException error) {
            return GIVEN_UP;
        }
    }

    static KafkaProducer<byte[], byte[]> producer(String bootstrap, Properties settings) {
        settings.put("bootstrap.servers", bootstrap);
        settings.put("request.timeout.ms", requestTimeoutMs);
        settings.put("delivery.timeout.ms", deliveryTimeoutMs);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** The cause, where the client wraps the error that it got in a KafkaException without a name of its own. */
    static String nameOf(KafkaException error) {
        boolean isWrapped = error.getClass() == KafkaException.class && error.getCause() instanceof KafkaException;
        return (isWrapped ? error.getCause() : error).getClass().getSimpleName();
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client in a process of its own, told what to do by the lines that agents/agent.py describes. */
public final class Agent {
    static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    static final PrintStream OUT = System.out;

    public static void main(String[] arguments) throws Exception {
        for (String line = IN.readLine(); line != null; line = IN.readLine()) {
            try {
                serve(line.split("\t", -1));
                answer("ok");
            } catch (Exception error) {
                error.printStackTrace();
                answer("error", oneLine(error));
            }
        }
        System.exit(0);
    }

    static void serve(String[] fields) throws Exception {
        switch (fields[0]) {
            case "produce": {
                List<String[]> records = new ArrayList<>();
                for (int left = Integer.parseInt(fields[5]); left > 0; left--) {
                    records.add(IN.readLine().split("\t", -1));
                }
                produce(fields[1], fields[2], fields[3], options(fields[4]), records);
                break;
            }
            case "read":
                read(fields[1], fields[2], Integer.parseInt(fields[3]), Long.parseLong(fields[4]), options(fields[5]));
                break;
            case "find":
                find(fields[1], new TopicPartition(fields[2], Integer.parseInt(fields[3])), Long.parseLong(fields[4]),
                    Long.parseLong(fields[5]));
                break;
            case "join":
                join(fields[1], fields[2], fields[3], options(fields[4]));
                if (IN.ready()) {
                    IN.readLine();
                }
                break;
            case "open":
                Dialect.openTransactions(fields[1], fields[2], fields[3], options(fields[4]));
                break;
            case "begin":
            case "flush":
            case "commit":
            case "abort":
            case "send":
            case "offsets":
            case "close":
                Dialect.transact(fields);
                break;
            default:
                throw new IllegalArgumentException(fields[0]);
        }
    }

    static void produce(String bootstrap, String topic, String codec, Map<String, String> options, List<String[]> records)
            throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", codec);
        settings.put("acks", options.getOrDefault("acks", "all"));
        settings.put("linger.ms", "5");
        settings.put("max.request.size", options.getOrDefault("max_request_size", "2000000"));
        settings.put("reconnect.backoff.ms", "10");
        Dialect.configureProducer(settings, options);
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<?>> sent = new ArrayList<>();
            for (String[] fields : records) {
                Long timestamp = fields[3].equals("-") ? null : Long.valueOf(fields[3]);
                sent.add(producer.send(Dialect.producerRecord(
                    topic, Integer.valueOf(fields[0]), timestamp, unpack(fields[1]), unpack(fields[2]), fields[4])));
            }
            producer.flush();
            for (Future<?> future : sent) {
                future.get(60, TimeUnit.SECONDS);
            }
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, Properties more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void read(String bootstrap, String topic, int count, long timeoutMs, Map<String, String> options) {
        Properties settings = new Properties();
        if (options.containsKey("isolation")) {
            settings.put("isolation.level", options.get("isolation"));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, settings)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (PartitionInfo partition : consumer.partitionsFor(topic)) {
                partitions.add(new TopicPartition(topic, partition.partition()));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.currentTimeMillis() + timeoutMs;
            Map<TopicPartition, Long> ends = "end".equals(options.get("until")) ? Dialect.endOffsets(consumer, partitions) : null;
            int found = 0;
            while (!isRead(consumer, ends, found, count) && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : Dialect.poll(consumer, 200)) {
                    answerRecord(record);
                    found++;
                }
            }
        }
    }

    /** Whether all positions have reached the ends, or, without these, so many records were found. */
    static boolean isRead(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> ends, int found, int count) {
        if (ends == null) {
            return found >= count;
        }
        for (Map.Entry<TopicPartition, Long> end : ends.entrySet()) {
            if (consumer.position(end.getKey()) < end.getValue()) {
                return false;
            }
        }
        return true;
    }

    static void find(String bootstrap, TopicPartition partition, long timestamp, long timeoutMs) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, new Properties())) {
            consumer.assign(Arrays.asList(partition));
            long offset = Dialect.offsetForTime(consumer, partition, timestamp);
            answer("offset", Long.toString(offset));
            if (offset < 0) {
                return;
            }
            consumer.seek(partition, offset);
            long deadline = System.currentTimeMillis() + timeoutMs;
            while (System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : Dialect.poll(consumer, 200)) {
                    answerRecord(record);
                    return;
                }
            }
        }
    }

    static void join(String bootstrap, String group, String topics, Map<String, String> options) throws Exception {
        Properties settings = new Properties();
        int session = Integer.parseInt(options.getOrDefault("session", "3000"));
        settings.put("group.id", group);
        settings.put("max.poll.records", options.getOrDefault("max_poll", "500"));
        if (options.getOrDefault("protocol", "classic").equals("classic")) {
            settings.put("session.timeout.ms", Integer.toString(session));
            settings.put("heartbeat.interval.ms", Integer.toString(session / 4));
            settings.put("partition.assignment.strategy", assignor(options.getOrDefault("assignor", "range")));
        } else {
            settings.put("group.protocol", "consumer");
            if (options.containsKey("assignor")) {
                settings.put("group.remote.assignor", options.get("assignor"));
            }
        }
        if (options.containsKey("instance")) {
            settings.put("group.instance.id", options.get("instance"));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, settings)) {
            ConsumerRebalanceListener listener = new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    answer("revoked", numbers(partitions));
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    answer("assigned", numbers(consumer.assignment()));
                }
            };
            if (topics.startsWith("^")) {
                subscribeByPattern(consumer, topics, listener);
            } else {
                consumer.subscribe(Arrays.asList(topics.split(",")), listener);
            }
            long left = Long.parseLong(options.getOrDefault("limit", Long.toString(Long.MAX_VALUE)));
            while (left > 0 && !IN.ready()) {
                int found = 0;
                for (ConsumerRecord<byte[], byte[]> record : Dialect.poll(consumer, 100)) {
                    answerRecord(record);
                    found++;
                }
                if (found > 0) {
                    left -= found;
                    try {
                        consumer.commitSync();
                    } catch (KafkaException error) {
                        answer("uncommitted", oneLine(error));
                    }
                }
            }
        }
    }

    /** By a regular expression that the broker evaluates, which clients have since 4.0. */
    static void subscribeByPattern(KafkaConsumer<byte[], byte[]> consumer, String regex, ConsumerRebalanceListener listener)
            throws ReflectiveOperationException {
        Class<?> pattern = Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
        consumer.getClass().getMethod("subscribe", pattern, ConsumerRebalanceListener.class)
            .invoke(consumer, pattern.getConstructor(String.class).newInstance(regex), listener);
    }

    static String assignor(String name) {
        switch (name) {
            case "range":
                return "org.apache.kafka.clients.consumer.RangeAssignor";
            case "roundrobin":
                return "org.apache.kafka.clients.consumer.RoundRobinAssignor";
            case "cooperative-sticky":
                return "org.apache.kafka.clients.consumer.CooperativeStickyAssignor";
            default:
                throw new IllegalArgumentException(name);
        }
    }

    static Map<String, String> options(String text) {
        Map<String, String> options = new HashMap<>();
        for (String item : text.split(";")) {
            if (!item.isEmpty()) {
                options.put(item.substring(0, item.indexOf('=')), item.substring(item.indexOf('=') + 1));
            }
        }
        return options;
    }

    static void answerRecord(ConsumerRecord<byte[], byte[]> record) {
        answer("record", Integer.toString(record.partition()), Long.toString(record.offset()), pack(record.key()),
            pack(record.value()), Long.toString(record.timestamp()), Dialect.headers(record));
    }

    static String numbers(Collection<TopicPartition> partitions) {
        List<String> numbers = new ArrayList<>();
        for (TopicPartition partition : partitions) {
            numbers.add(Integer.toString(partition.partition()));
        }
        return String.join(",", numbers);
    }

    static synchronized void answer(String... fields) {
        OUT.println(String.join("\t", fields));
        OUT.flush();
    }

    static String oneLine(Exception error) {
        return error.toString().replace('\t', ' ').replace('\n', ' ');
    }

    static String pack(byte[] value) {
        return value == null ? "-" : Base64.getEncoder().encodeToString(value);
    }

    static byte[] unpack(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }
}

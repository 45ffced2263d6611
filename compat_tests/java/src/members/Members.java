import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Members of a group with the Java client, each in a thread; the lines are those of agents/members.py. */
public final class Members {
    static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            if (fields[0].equals("start")) {
                Member member = new Member(fields);
                MEMBERS.put(fields[1], member);
                member.start();
            } else if (MEMBERS.containsKey(fields[1])) {
                MEMBERS.get(fields[1]).isToldToLeave = true;
            }
        }
        Runtime.getRuntime().halt(0);
    }

    static synchronized void tell(String name, String kind, String... fields) {
        StringBuilder line = new StringBuilder(System.nanoTime() + "\t" + name + "\t" + kind);
        for (String field : fields) {
            line.append('\t').append(field.replace('\t', ' ').replace('\n', ' '));
        }
        System.out.print(line.append('\n'));
        System.out.flush();
    }

    static final class Member extends Thread implements ConsumerRebalanceListener {
        final String name;
        final String topic;
        final Properties settings = new Properties();
        volatile boolean isToldToLeave;
        KafkaConsumer<byte[], byte[]> consumer;

        Member(String[] fields) {
            name = fields[1];
            topic = fields[4];
            Map<String, String> options = new HashMap<>();
            for (String item : fields[5].split(";")) {
                options.put(item.substring(0, item.indexOf('=')), item.substring(item.indexOf('=') + 1));
            }
            settings.put("bootstrap.servers", fields[2]);
            settings.put("group.id", fields[3]);
            settings.put("client.id", name);
            settings.put("group.protocol", options.get("protocol"));
            settings.put("enable.auto.commit", "false");
            settings.put("auto.offset.reset", "earliest");
            settings.put("fetch.max.wait.ms", "200");
            settings.put("max.poll.records", "100");
            settings.put("reconnect.backoff.ms", "10");
            settings.put("reconnect.backoff.max.ms", "200");
            if (options.get("protocol").equals("classic")) {
                settings.put("session.timeout.ms", options.get("session"));
                settings.put("heartbeat.interval.ms", Integer.toString(Integer.parseInt(options.get("session")) / 6));
                settings.put("partition.assignment.strategy", options.get("assignor").equals("range")
                    ? "org.apache.kafka.clients.consumer.RangeAssignor"
                    : "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            }
        }

        @Override
        public void run() {
            try {
                consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                consumer.subscribe(List.of(topic), this);
                while (!isToldToLeave) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                    if (!records.isEmpty()) {
                        commit(records);
                    }
                }
                tell(name, "closing");
                consumer.close();
                tell(name, "left");
            } catch (RuntimeException error) {
                error.printStackTrace();
                tell(name, "failed", error.toString());
            }
        }

        void commit(ConsumerRecords<byte[], byte[]> records) {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            Map<Integer, String> ranges = new TreeMap<>();
            for (TopicPartition place : records.partitions()) {
                List<ConsumerRecord<byte[], byte[]>> found = records.records(place);
                long last = found.get(found.size() - 1).offset();
                ranges.put(place.partition(), place.partition() + ":" + found.get(0).offset() + ":" + last);
                offsets.put(place, new OffsetAndMetadata(last + 1));
            }
            tell(name, "read", String.join(",", ranges.values()));
            try {
                consumer.commitSync(offsets);
            } catch (KafkaException error) {
                tell(name, "refused", error.toString());
                return;
            }
            tell(name, "committed", offsets.entrySet().stream()
                .map(entry -> entry.getKey().partition() + ":" + entry.getValue().offset())
                .collect(Collectors.joining(",")));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell(name, "assigned", Integer.toString(consumer.groupMetadata().generationId()), numbers(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            tell(name, "revoked", numbers(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            tell(name, "lost", numbers(partitions));
        }

        static String numbers(Collection<TopicPartition> partitions) {
            int[] numbers = partitions.stream().mapToInt(TopicPartition::partition).sorted().toArray();
            return Arrays.stream(numbers).mapToObj(Integer::toString).collect(Collectors.joining(","));
        }
    }
}

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/** What Agent needs of kafka-clients 4.3.1, and 3.9.1. */
final class Dialect {
    static void configureProducer(Properties settings, Map<String, String> options) {
        settings.put("enable.idempotence", options.getOrDefault("idempotent", "0").equals("1") ? "true" : "false");
    }

    static ProducerRecord<byte[], byte[]> producerRecord(
            String topic, Integer partition, Long timestamp, byte[] key, byte[] value, String headers) {
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, partition, timestamp, key, value);
        for (String item : headers.split(",")) {
            if (!item.isEmpty()) {
                int colon = item.indexOf(':');
                String name = new String(Base64.getDecoder().decode(item.substring(0, colon)), StandardCharsets.UTF_8);
                record.headers().add(name, Agent.unpack(item.substring(colon + 1)));
            }
        }
        return record;
    }

    static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer, long timeoutMs) {
        return consumer.poll(Duration.ofMillis(timeoutMs));
    }

    static long offsetForTime(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long timestamp) {
        OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, timestamp)).get(partition);
        return found == null ? -1 : found.offset();
    }

    static Map<TopicPartition, Long> endOffsets(KafkaConsumer<byte[], byte[]> consumer, Collection<TopicPartition> partitions) {
        return consumer.endOffsets(partitions);
    }

    static final Map<String, Transactions> TRANSACTIONS = new HashMap<>();

    static void openTransactions(String name, String bootstrap, String transactionalId, Map<String, String> options) {
        TRANSACTIONS.put(name, new Transactions(bootstrap, transactionalId, options));
    }

    static void transact(String[] fields) throws Exception {
        Transactions transactions = TRANSACTIONS.get(fields[1]);
        switch (fields[0]) {
            case "begin":
                transactions.producer.beginTransaction();
                break;
            case "flush":
                transactions.flush();
                break;
            case "commit":
                transactions.producer.commitTransaction();
                break;
            case "abort":
                transactions.producer.abortTransaction();
                transactions.sent.clear();
                break;
            case "send":
                transactions.send(fields[2], Integer.parseInt(fields[3]), Agent.unpack(fields[4]));
                break;
            case "offsets":
                transactions.offsets(fields[2], fields[3], fields[4]);
                break;
            default:
                TRANSACTIONS.remove(fields[1]);
                transactions.producer.close(Duration.ofSeconds(5));
        }
    }

    static String headers(ConsumerRecord<byte[], byte[]> record) {
        List<String> items = new ArrayList<>();
        for (Header header : record.headers()) {
            byte[] name = header.key().getBytes(StandardCharsets.UTF_8);
            items.add(Base64.getEncoder().withoutPadding().encodeToString(name) + ":" + Agent.pack(header.value()));
        }
        return String.join(",", items);
    }
}

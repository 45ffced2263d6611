import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
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

/** What Agent needs of kafka-clients 4.3.1. */
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

    static String headers(ConsumerRecord<byte[], byte[]> record) {
        List<String> items = new ArrayList<>();
        for (Header header : record.headers()) {
            byte[] name = header.key().getBytes(StandardCharsets.UTF_8);
            items.add(Base64.getEncoder().withoutPadding().encodeToString(name) + ":" + Agent.pack(header.value()));
        }
        return String.join(",", items);
    }
}

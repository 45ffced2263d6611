import java.util.Collection;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** What Agent needs of kafka-clients 0.10.0.0: no headers, no idempotence, no transactions, no search by timestamp. */
final class Dialect {
    static void configureProducer(Properties settings, Map<String, String> options) {
        settings.put("retries", options.getOrDefault("retries", "10"));
        settings.put("max.in.flight.requests.per.connection", "1");
    }

    static ProducerRecord<byte[], byte[]> producerRecord(
            String topic, Integer partition, Long timestamp, byte[] key, byte[] value, String headers) {
        if (!headers.isEmpty()) {
            throw new IllegalArgumentException("this client has no headers");
        }
        return new ProducerRecord<>(topic, partition, timestamp, key, value);
    }

    static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer, long timeoutMs) {
        return consumer.poll(timeoutMs);
    }

    static long offsetForTime(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long timestamp) {
        throw new UnsupportedOperationException("this client cannot search by timestamp");
    }

    static Map<TopicPartition, Long> endOffsets(KafkaConsumer<byte[], byte[]> consumer, Collection<TopicPartition> partitions) {
        throw new UnsupportedOperationException("this client cannot ask for the end offsets");
    }

    static void openTransactions(String name, String bootstrap, String transactionalId, Map<String, String> options) {
        throw new UnsupportedOperationException("this client has no transactions");
    }

    static void transact(String[] fields) {
        throw new UnsupportedOperationException("this client has no transactions");
    }

    static String headers(ConsumerRecord<byte[], byte[]> record) {
        return "";
    }
}

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A transactional producer; what was not delivered is told by flush. */
final class Transactions {
    final KafkaProducer<byte[], byte[]> producer;
    final List<Future<?>> sent = new ArrayList<>();

    Transactions(String bootstrap, String transactionalId, Map<String, String> options) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", transactionalId);
        settings.put("transaction.timeout.ms", options.getOrDefault("transaction_timeout", "60000"));
        settings.put("compression.type", options.getOrDefault("codec", "none"));
        settings.put("linger.ms", "5");
        settings.put("reconnect.backoff.ms", "10");
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            producer.initTransactions();
        } catch (RuntimeException error) {
            producer.close();
            throw error;
        }
    }

    void send(String topic, int partition, byte[] value) {
        sent.add(producer.send(new ProducerRecord<>(topic, partition, null, value)));
    }

    void flush() throws Exception {
        producer.flush();
        List<Future<?>> flushed = new ArrayList<>(sent);
        sent.clear();
        for (Future<?> future : flushed) {
            future.get(30, TimeUnit.SECONDS);
        }
    }

    void offsets(String group, String topic, String offsets) {
        Map<TopicPartition, OffsetAndMetadata> places = new HashMap<>();
        for (String item : offsets.split(",")) {
            String[] pair = item.split(":");
            places.put(new TopicPartition(topic, Integer.parseInt(pair[0])), new OffsetAndMetadata(Long.parseLong(pair[1])));
        }
        producer.sendOffsetsToTransaction(places, new ConsumerGroupMetadata(group));
    }
}

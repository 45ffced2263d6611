import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Copies a topic to another exactly once until it is killed, as agents/copying_worker.py does. Arguments: bootstrap servers, group,
 * source, target, transactional id.
 */
public final class CopyingWorker {
    final KafkaConsumer<byte[], byte[]> consumer;
    final KafkaProducer<byte[], byte[]> producer;
    final String target;

    CopyingWorker(String bootstrap, String group, String source, String target, String transactionalId) {
        this.target = target;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("reconnect.backoff.ms", "10");
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("transactional.id", transactionalId);
        settings.put("transaction.timeout.ms", "10000");
        settings.put("delivery.timeout.ms", "10000");
        settings.put("request.timeout.ms", "5000");
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("reconnect.backoff.ms", "10");
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        settings.put("session.timeout.ms", "3000");
        settings.put("heartbeat.interval.ms", "500");
        settings.put("max.poll.interval.ms", "10000");
        settings.put("max.poll.records", "100");
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(source));
    }

    void run() {
        while (true) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
            if (records.isEmpty()) {
                continue;
            }
            try {
                copy(records);
            } catch (ProducerFencedException | FencedInstanceIdException | OutOfOrderSequenceException | AuthorizationException
                | UnsupportedVersionException error) {
                throw error;
            } catch (KafkaException error) {
                System.err.println("aborts: " + error);
                producer.abortTransaction();
                rewind();
            }
        }
    }

    void copy(ConsumerRecords<byte[], byte[]> records) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            producer.send(new ProducerRecord<>(target, record.partition(), record.key(), record.value()));
            positions.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                // May be asked again, and must not be aborted: nobody knows yet whether it was committed.
                System.err.println("commits again: " + error);
            }
        }
    }

    /** Goes back to what is committed. */
    void rewind() {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata offset = committed.get(partition);
            if (offset == null) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, offset.offset());
            }
        }
    }

    public static void main(String[] arguments) {
        try {
            new CopyingWorker(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]).run();
        } catch (RuntimeException error) {
            error.printStackTrace();
        }
        // Without a farewell: the next process with this transactional id cleans up.
        Runtime.getRuntime().halt(1);
    }
}

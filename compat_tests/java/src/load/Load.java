import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Load on a cluster whose brokers fail: see agents/load.py for the arguments and for the lines of the history. */
public final class Load {
    static final String NAME = "java";
    static final String PLAIN = "plain";
    static final String TRANSACTED = "transacted";
    static final long PAUSE_MS = 50;
    static final int ABORT_EACH = 4;

    final PrintWriter history;
    final int partitions;
    final String bootstrap;
    volatile boolean isStopped;
    long last;

    Load(String history, int partitions, String bootstrap) throws IOException {
        this.history = new PrintWriter(history, StandardCharsets.UTF_8);
        this.partitions = partitions;
        this.bootstrap = bootstrap;
    }

    /** Writes a line with the time of the clock that all recorders of the machine share: on Linux, nanoTime is CLOCK_MONOTONIC. */
    synchronized void add(Object... fields) {
        last = Math.max(last + 1, System.nanoTime());
        StringBuilder line = new StringBuilder().append(last);
        for (Object field : fields) {
            line.append('\t').append(String.valueOf(field).replaceAll("[\t\n]", " "));
        }
        history.print(line.append('\n'));
        history.flush();
    }

    KafkaProducer<String, String> open(String transactionalId) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("request.timeout.ms", "5000");
        settings.put("delivery.timeout.ms", "120000");
        settings.put("linger.ms", "0");
        if (transactionalId != null) {
            settings.put("transactional.id", transactionalId);
            settings.put("transaction.timeout.ms", "60000");
        }
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    void send(KafkaProducer<String, String> producer, String topic, int partition, String payload, String transaction) {
        add("sent", NAME, topic, partition, payload, transaction);
        producer.send(new ProducerRecord<>(topic, partition, null, payload), (metadata, error) -> {
            if (error != null) {
                add("unknown", payload, error);
            } else {
                add("acked", payload, metadata.offset());
            }
        });
    }

    /** Writes to all partitions with an idempotent producer. */
    void produce() throws InterruptedException {
        try (KafkaProducer<String, String> producer = open(null)) {
            for (int number = 0; !isStopped; number++) {
                for (int partition = 0; partition < partitions; partition++) {
                    send(producer, PLAIN, partition, NAME + "-p-" + partition + "-" + number, "-");
                }
                Thread.sleep(PAUSE_MS);
            }
            producer.flush();
        }
    }

    /** Writes to all partitions in each transaction, and aborts some. */
    void transact() throws InterruptedException {
        KafkaProducer<String, String> producer = openTransactions();
        for (int number = 0; !isStopped; number++) {
            String transaction = NAME + "-t-" + number;
            add("begun", transaction, NAME, 2);
            try {
                transactOnce(producer, transaction, number % ABORT_EACH == ABORT_EACH - 1);
            } catch (KafkaException error) {
                System.err.println(transaction + ": " + error);
                add("gave-up", transaction, error);
                producer.close(Duration.ZERO);
                producer = openTransactions();
            }
            Thread.sleep(PAUSE_MS);
        }
        producer.close();
    }

    KafkaProducer<String, String> openTransactions() {
        KafkaProducer<String, String> producer = open(NAME);
        persistently(producer::initTransactions);
        return producer;
    }

    void transactOnce(KafkaProducer<String, String> producer, String transaction, boolean isAborted) {
        producer.beginTransaction();
        for (int partition = 0; partition < partitions; partition++) {
            send(producer, TRANSACTED, partition, transaction + "-" + partition, transaction);
        }
        if (isAborted) {
            add("end", transaction, "abort");
            persistently(producer::abortTransaction);
            add("aborted", transaction);
        } else {
            add("end", transaction, "commit");
            persistently(producer::commitTransaction);
            add("committed", transaction);
        }
    }

    /** Repeats a call that has not been answered in time, as KafkaProducer asks. */
    static void persistently(Runnable call) {
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException error) {
                System.err.println("tries again: " + error);
            }
        }
    }

    /** Reads all committed records, from the beginning. */
    void consume() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("request.timeout.ms", "5000");
        settings.put("auto.offset.reset", "none");
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("fetch.max.wait.ms", "100");
        List<TopicPartition> assigned = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) {
            assigned.add(new TopicPartition(PLAIN, partition));
            assigned.add(new TopicPartition(TRANSACTED, partition));
        }
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        Map<TopicPartition, Long> positions = new HashMap<>();
        consumer.assign(assigned);
        assigned.forEach(each -> consumer.seek(each, 0));
        while (true) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                TopicPartition place = new TopicPartition(record.topic(), record.partition());
                long position = positions.getOrDefault(place, 0L);
                add("read", NAME, record.topic(), record.partition(), record.offset(), record.value(), position);
                positions.put(place, record.offset() + 1);
            }
        }
    }

    interface Task {
        void run() throws InterruptedException;
    }

    /** Starts a thread whose failure ends the process. */
    static Thread start(Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (Throwable error) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        });
        thread.start();
        return thread;
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = String.join(",", List.of(arguments).subList(2, arguments.length));
        Load load = new Load(arguments[0], Integer.parseInt(arguments[1]), bootstrap);
        start(load::consume);
        List<Thread> writers = List.of(start(load::produce), start(load::transact));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        input.readLine(); // "stop": ends the writers
        load.isStopped = true;
        for (Thread writer : writers) {
            writer.join();
        }
        System.out.println("stopped");
        input.readLine(); // "end"
        Runtime.getRuntime().halt(0);
    }
}

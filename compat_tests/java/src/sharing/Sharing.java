import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of share groups, told what to do by the lines that harness/sharing.py writes, or, with arguments, one that works until
 * it is killed: it rejects records that begin with "bad", releases those that begin with "slow" once, and accepts the others.
 */
public final class Sharing {
    static final Map<String, KafkaShareConsumer<String, String>> MEMBERS = new HashMap<>();
    static final Map<String, ConsumerRecord<String, String>> RECORDS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 0) {
            work(arguments[0], arguments[1], arguments[2]);
            return;
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                serve(line.split("\t", -1));
                tell("ok");
            } catch (Exception error) {
                error.printStackTrace();
                tell("error", error.getClass().getSimpleName(), String.valueOf(error.getMessage()));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    static KafkaShareConsumer<String, String> open(String bootstrap, String group, String topics, String options) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("reconnect.backoff.ms", "10");
        for (String option : options.split(",")) {
            if (!option.isEmpty()) {
                settings.put(option.substring(0, option.indexOf('=')), option.substring(option.indexOf('=') + 1));
            }
        }
        KafkaShareConsumer<String, String> member =
            new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        member.subscribe(Arrays.asList(topics.split(",")));
        return member;
    }

    static void serve(String[] fields) {
        if (fields[0].equals("open")) {
            MEMBERS.put(fields[1], open(fields[2], fields[3], fields[4], fields[5]));
            return;
        }
        KafkaShareConsumer<String, String> member = MEMBERS.get(fields[1]);
        switch (fields[0]) {
            case "poll":
                for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(Long.parseLong(fields[2])))) {
                    RECORDS.put(name(fields[1], record.topic(), record.partition() + "", record.offset() + ""), record);
                    tell("record", record);
                }
                break;
            case "acknowledge":
                member.acknowledge(RECORDS.get(name(fields[1], fields[2], fields[3], fields[4])), AcknowledgeType.valueOf(fields[5]));
                break;
            case "commit":
                commit(member);
                break;
            default:
                MEMBERS.remove(fields[1]).close(Duration.ofSeconds(10));
        }
    }

    static String name(String... parts) {
        return String.join("/", parts);
    }

    static boolean commit(KafkaShareConsumer<String, String> member) {
        boolean isDone = true;
        for (Map.Entry<TopicIdPartition, Optional<KafkaException>> entry : member.commitSync(Duration.ofSeconds(20)).entrySet()) {
            if (entry.getValue().isPresent()) {
                tell("refused", entry.getKey().partition() + "", entry.getValue().get().getClass().getSimpleName());
                isDone = false;
            }
        }
        return isDone;
    }

    static void work(String bootstrap, String group, String topic) {
        KafkaShareConsumer<String, String> member = open(bootstrap, group, topic, "max.poll.records=20");
        while (true) {
            StringBuilder taken = new StringBuilder();
            for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(200))) {
                AcknowledgeType type = AcknowledgeType.ACCEPT;
                if (record.value().startsWith("bad")) {
                    type = AcknowledgeType.REJECT;
                } else if (record.value().startsWith("slow") && record.deliveryCount().get() == 1) {
                    type = AcknowledgeType.RELEASE;
                }
                tell("record", record);
                member.acknowledge(record, type);
                taken.append(type.name()).append('\t').append(record.value()).append('\n');
            }
            if (taken.length() > 0 && commit(member)) {
                System.out.print(taken);
                System.out.flush();
            }
        }
    }

    static void tell(String kind, ConsumerRecord<String, String> record) {
        tell(kind, record.topic(), record.partition() + "", record.offset() + "", record.deliveryCount().get() + "", record.value());
    }

    static void tell(String... fields) {
        System.out.println(String.join("\t", fields).replace('\n', ' '));
        System.out.flush();
    }
}

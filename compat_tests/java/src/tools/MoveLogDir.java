import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.TopicPartitionReplica;

/**
 * Moves one partition to another data directory, as kafka-reassign-partitions does. Arguments: bootstrap servers, topic, partition,
 * broker, path.
 */
public final class MoveLogDir {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(settings)) {
            TopicPartitionReplica replica =
                new TopicPartitionReplica(arguments[1], Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]));
            admin.alterReplicaLogDirs(Map.of(replica, arguments[4])).all().get();
            admin.describeReplicaLogDirs(java.util.List.of(replica)).all().get()
                .forEach((each, info) -> System.out.println(info.getCurrentReplicaLogDir() + " " + info.getFutureReplicaLogDir()));
        }
    }
}

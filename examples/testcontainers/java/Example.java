import java.io.OutputStream;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.wait.strategy.Wait;

/**
 * Starts a broker in a container, and prints its address; stops it when the standard input ends.
 *
 * <pre>
 * docker build -f docker/Dockerfile -t wirekafka .
 * cd examples/testcontainers/java
 * mvn -q dependency:copy-dependencies -DoutputDirectory=jars
 * java -cp 'jars/*' Example.java
 * </pre>
 *
 * docs/docker.md says more.
 */
public class Example {
    public static void main(String[] arguments) throws Exception {
        var broker = new GenericContainer<>("wirekafka")
            .withExposedPorts(9092)
            .withEnv("WIREKAFKA_PUBLISHED", "@/dev/shm/published")
            .withEnv("WIREKAFKA_TOPICS", "orders:3")
            .waitingFor(Wait.forLogMessage(".* ready on .*", 1));
        broker.start();
        var bootstrap = broker.getHost() + ":" + broker.getMappedPort(9092);
        broker.execInContainer("sh", "-c", "echo " + bootstrap + " > /dev/shm/published");

        System.out.println(bootstrap);
        System.in.transferTo(OutputStream.nullOutputStream());
        broker.stop();
    }
}

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's command line tools one after the other, because starting a JVM costs more than any of them.
 *
 * A line on stdin is a class and its arguments, each in base64, separated by tabs. The answer is one line: exit code, stdout and
 * stderr. Exit is Kafka's own hook for tests: every tool ends through it.
 */
public final class Tools {
    static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    /** The code of the first exit: some tools catch the Ended of a success, and would exit once more with a failure. */
    static Integer exitCode;

    static void end(int code) {
        if (exitCode == null) {
            exitCode = code;
        }
        throw new Ended();
    }

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        // Set once: Scala's Console keeps the stream that it finds at its first use.
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
        System.setIn(new ByteArrayInputStream(new byte[0]));
        Exit.setExitProcedure((code, message) -> end(code));
        Exit.setHaltProcedure((code, message) -> end(code));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = Arrays.stream(line.split("\t"))
                .map(word -> new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8))
                .toArray(String[]::new);
            int code = run(words);
            System.out.flush();
            System.err.flush();
            answers.println(code + "\t" + encode(out) + "\t" + encode(err));
            answers.flush();
            out.reset();
            err.reset();
        }
        System.exit(0);
    }

    static int run(String[] words) {
        exitCode = null;
        try {
            Class<?> tool = Class.forName(words[0]);
            String[] arguments = Arrays.copyOfRange(words, 1, words.length);
            tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
            return exitCode == null ? 0 : exitCode;
        } catch (InvocationTargetException error) {
            if (exitCode != null) {
                return exitCode;
            }
            error.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException error) {
            error.printStackTrace();
            return 127;
        }
    }

    static String encode(ByteArrayOutputStream bytes) {
        return Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Reads messages and writes them again with Kafka's own generated classes.
 *
 * A line on stdin is an API key, "request" or "response", a version, and the message in hex, separated by spaces. The answer is one
 * line: the message in hex as Kafka writes it, a space, and its fields as Kafka's JSON.
 */
public final class Messages {
    public static void main(String[] ignored) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            System.out.println(copy(Short.parseShort(words[0]), words[1].equals("request"), Short.parseShort(words[2]), words[3]));
        }
    }

    static String copy(short key, boolean isRequest, short version, String hex) throws Exception {
        ApiMessageType type = ApiMessageType.fromApiKey(key);
        ApiMessage message = isRequest ? type.newRequest() : type.newResponse();
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(hex));
        message.read(new ByteBufferAccessor(bytes), version);
        if (bytes.hasRemaining()) {
            throw new IllegalStateException(bytes.remaining() + " bytes too many after " + message.getClass().getSimpleName());
        }
        byte[] copied = MessageUtil.toByteBuffer(message, version).array();
        Method toJson = Class.forName(message.getClass().getName() + "JsonConverter")
            .getMethod("write", message.getClass(), short.class);
        return HexFormat.of().formatHex(copied) + " " + toJson.invoke(null, message, version);
    }
}

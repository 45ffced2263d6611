import java.lang.reflect.*;
import java.util.*;

/** Prints the APIs that a kafka-clients jar declares: id, first and last version, and the listeners that serve it. */
public class ApiVersionsOfRelease {
    public static void main(String[] args) throws Exception {
        Class<?> keys = Class.forName("org.apache.kafka.common.protocol.ApiKeys");
        for (Object key : keys.getEnumConstants()) {
            int id = ((Number) keys.getField("id").get(key)).intValue();
            int first, last;
            Object messageType = null;
            try { messageType = keys.getField("messageType").get(key); } catch (NoSuchFieldException e) { }
            try {
                first = ((Number) keys.getMethod("oldestVersion").invoke(key)).intValue();
                try { last = ((Number) keys.getMethod("latestVersion", boolean.class).invoke(key, false)).intValue(); }
                catch (NoSuchMethodException e) { last = ((Number) keys.getMethod("latestVersion").invoke(key)).intValue(); }
            } catch (NoSuchMethodException e) {
                Object[] requests = (Object[]) Class.forName("org.apache.kafka.common.protocol.Protocol").getField("REQUESTS").get(null);
                if (id >= requests.length || requests[id] == null) continue;
                Object[] schemas = (Object[]) requests[id];
                first = 0; while (first < schemas.length && schemas[first] == null) first++;
                last = schemas.length - 1;
            }
            String scope = "-";
            if (messageType != null) {
                try { scope = messageType.getClass().getMethod("listeners").invoke(messageType).toString(); } catch (NoSuchMethodException e) { }
            }
            System.out.println(id + " " + first + " " + last + " " + scope.replace(" ", ""));
        }
    }
}

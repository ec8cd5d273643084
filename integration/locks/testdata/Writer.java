import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/** Adds lines to an object under a lock in ZooKeeper: java -cp … Writer.java SERVERS LOCK OBJECT <lines */
public class Writer {
    static final int TTL = 10_000; // milliseconds; a session that is not heard of for so long ends, and its node goes with it

    /** Waits until our node is the oldest below the lock's. Its czxid is the token: a later node has a higher one. */
    static long acquire(ZooKeeper zk, String lock) throws Exception {
        Stat stat = new Stat();
        String path = zk.create(lock + "/writer-", new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL_SEQUENTIAL, stat);
        String node = path.substring(lock.length() + 1);
        while (true) {
            List<String> queue = zk.getChildren(lock, false);
            Collections.sort(queue); // all have one prefix and ten digits
            if (queue.get(0).equals(node)) {
                return stat.getCzxid(); // neither the ten digits nor cversion: they begin again when the lock's node is made anew
            }
            CountDownLatch changed = new CountDownLatch(1);
            String before = queue.get(queue.indexOf(node) - 1);
            if (zk.exists(lock + "/" + before, event -> changed.countDown()) != null) {
                changed.await();
            }
        }
    }

    static String send(HttpRequest.Builder request) throws Exception {
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request.build(), BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IllegalStateException(answer.statusCode() + " " + answer.body());
        }
        return answer.body();
    }

    public static void main(String[] args) throws Exception {
        try (ZooKeeper zk = new ZooKeeper(args[0], TTL, event -> {})) { // it keeps the session alive by itself
            long token = acquire(zk, args[1]);
            System.out.println("token " + token);

            HttpRequest.Builder object = HttpRequest.newBuilder(URI.create(args[2])).header("X-Fence-Token", Long.toString(token));
            String state = send(object.copy().GET()); // raises the fence: no older holder changes it from here on
            state += new String(System.in.readAllBytes()); // the work
            send(object.copy().PUT(BodyPublishers.ofString(state)));
        } // the lock is free
    }
}

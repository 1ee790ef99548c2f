import io.netty.resolver.DefaultAddressResolverGroup;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisClient;
import org.redisson.client.RedisClientConfig;
import org.redisson.client.RedisConnection;
import org.redisson.client.codec.StringCodec;
import org.redisson.client.protocol.RedisCommands;
import org.redisson.client.protocol.RedisStrictCommand;
import org.redisson.config.Config;

/** Redisson's locks, measured by `make bench ARGS=peers`. The protocol is in tests/bench/peers/README.md. */
public final class Driver {
    private static final long LEASE_MS = 10_000;

    private record Peer(String name, String note, Lock lock) {}

    /** A lock whose owner is the thread. */
    private interface Lock {
        void acquire();

        void release();
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 1 || arguments[0].startsWith("-")) {
            System.err.println("usage: Driver redis://HOST:PORT");
            System.err.println("Drives Redisson for `make bench ARGS=peers`: commands on stdin, replies on stdout.");
            System.exit(2);
        }
        // Redisson's threads would keep a process alive whose main thread has failed.
        Thread.currentThread().setUncaughtExceptionHandler((thread, failure) -> {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        List<Peer> peers = peers(arguments[0]);
        String version = Redisson.class.getPackage().getImplementationVersion();
        for (Peer peer : peers) {
            System.out.printf("peer %s %s %s%n", peer.name, version, peer.note);
        }
        System.out.println("ready");
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(execute(peers, line.split(" ")));
        }
        System.exit(0);
    }

    private static List<Peer> peers(String url) {
        var config = new Config();
        config.useSingleServer().setAddress(url);
        RedissonClient client = Redisson.create(config);
        return List.of(
                new Peer("floor", "SET NX PX and EVALSHA on one connection of Redisson's", new Floor(url)),
                new Peer("RLock", "waits for a message on one channel", of(client.getLock("peers-RLock"))),
                new Peer("RFairLock", "a queue of threads", of(client.getFairLock("peers-RFairLock"))),
                new Peer("RReadWriteLock", "its write lock",
                        of(client.getReadWriteLock("peers-RReadWriteLock").writeLock())));
    }

    /** With Redisson's watchdog, as its README shows. */
    private static Lock of(RLock lock) {
        return new Lock() {
            @Override
            public void acquire() {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    private static String execute(List<Peer> peers, String[] words) throws Exception {
        for (Peer peer : peers) {
            if (words.length == 3 && words[0].equals("cycles") && words[1].equals(peer.name)) {
                return Long.toString(cycles(peer.lock, Integer.parseInt(words[2])));
            }
            if (words.length == 4 && words[0].equals("contend") && words[1].equals(peer.name)) {
                return new Contention(peer.lock, Integer.parseInt(words[2]), Long.parseLong(words[3])).run();
            }
        }
        throw new IllegalArgumentException("no such command: " + String.join(" ", words));
    }

    private static long cycles(Lock lock, int n) {
        long begun = System.nanoTime();
        for (int i = 0; i < n; i++) {
            lock.acquire();
            lock.release();
        }
        return System.nanoTime() - begun;
    }

    /** Threads that want one lock again and again. */
    private static final class Contention {
        private static final ExecutorService THREADS = Executors.newCachedThreadPool();

        private final Lock lock;
        private final int contenders;
        private final long lengthNs;
        private final CyclicBarrier begin;
        /** Only the holder reads and writes these: a lock that lets two in shows here as well. */
        private volatile int all;
        private volatile int changed;
        private volatile int last = -1;

        Contention(Lock lock, int contenders, long milliseconds) {
            this.lock = lock;
            this.contenders = contenders;
            this.lengthNs = TimeUnit.MILLISECONDS.toNanos(milliseconds);
            this.begin = new CyclicBarrier(contenders);
        }

        /** The reply: grants within the time, all grants, and those that went to another thread than the one before. */
        String run() throws Exception {
            List<Future<Integer>> running = new ArrayList<>();
            for (int n = 0; n < contenders; n++) {
                int me = n;
                running.add(THREADS.submit(() -> contend(me)));
            }
            int within = 0;
            for (Future<Integer> contender : running) {
                within += contender.get();
            }
            return within + " " + all + " " + changed;
        }

        private int contend(int me) throws Exception {
            begin.await();
            long until = System.nanoTime() + lengthNs;
            int within = 0;
            while (true) {
                lock.acquire();
                all += 1;
                if (last != me) {
                    changed += 1;
                }
                last = me;
                long now = System.nanoTime();
                lock.release();
                if (now - until >= 0) {
                    return within;
                }
                within++;
            }
        }
    }

    /** The least that a lock with a lease needs: one connection, without the pool and the retries of Redisson's objects. */
    private static final class Floor implements Lock {
        private static final String KEY = "peers-java-floor";
        private static final String DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
        private static final RedisStrictCommand<Long> EVALSHA = new RedisStrictCommand<>("EVALSHA");

        private final RedisConnection connection;
        private final String delete;
        private long n;

        Floor(String url) {
            var config = new RedisClientConfig().setAddress(url);
            // The default asks for a transport that Redisson does not bring along.
            config.setResolverGroup(DefaultAddressResolverGroup.INSTANCE);
            connection = RedisClient.create(config).connect();
            delete = connection.sync(StringCodec.INSTANCE, RedisCommands.SCRIPT_LOAD, DELETE);
        }

        private String token() {
            return String.format("%032x", n);
        }

        @Override
        public void acquire() {
            n++;
            boolean set = connection.sync(StringCodec.INSTANCE, RedisCommands.SET_BOOLEAN, KEY, token(), "NX", "PX", LEASE_MS);
            if (!set) {
                throw new IllegalStateException("somebody else has the key");
            }
        }

        @Override
        public void release() {
            Long deleted = connection.sync(StringCodec.INSTANCE, EVALSHA, delete, 1, KEY, token());
            if (deleted != 1) {
                throw new IllegalStateException("the key was not ours");
            }
        }
    }
}

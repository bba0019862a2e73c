import com.typesafe.config.Config;
import com.typesafe.config.ConfigFactory;
import java.time.Duration;
import java.time.LocalDate;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.pekko.actor.typed.ActorRef;
import org.apache.pekko.actor.typed.ActorSystem;
import org.apache.pekko.actor.typed.Behavior;
import org.apache.pekko.actor.typed.SpawnProtocol;
import org.apache.pekko.actor.typed.Props;
import org.apache.pekko.actor.typed.javadsl.AskPattern;
import org.apache.pekko.actor.typed.javadsl.Behaviors;
import org.apache.pekko.persistence.cassandra.query.javadsl.CassandraReadJournal;
import org.apache.pekko.persistence.query.EventEnvelope;
import org.apache.pekko.persistence.query.Offset;
import org.apache.pekko.persistence.query.PersistenceQuery;
import org.apache.pekko.stream.javadsl.Sink;
import org.apache.pekko.stream.javadsl.Source;
import org.scalatest.tools.Runner;

/** Persistent actors on Pekko's Cassandra journal, its snapshots and queries, and the TCKs of Pekko persistence. */
public class Events {
  static final int ACCOUNTS = 8;
  static final Duration ANSWER = Duration.ofSeconds(10);
  static int failed = 0;

  interface Check {
    void run() throws Exception;
  }

  static void check(String name, Check what) {
    try {
      what.run();
      System.out.println("ok " + name);
    } catch (Throwable error) {
      failed++;
      error.printStackTrace();
      System.out.println("FAILED " + name + ": " + error.toString().replace('\n', ' '));
    }
  }

  static void same(Object found, Object expected, String what) {
    if (!found.equals(expected)) throw new AssertionError(what + ": " + found + " instead of " + expected);
  }

  static Config configuration() {
    String hosts = List.of(System.getenv("HOSTS").split(",")).stream().map(host -> "\"" + host + ":9042\"").collect(Collectors.joining(","));
    String dc = System.getenv("DATACENTER");
    String yesterday = LocalDate.now(ZoneOffset.UTC).minusDays(1).format(DateTimeFormatter.ofPattern("yyyyMMdd"));
    String replication = "keyspace-autocreate = on\n tables-autocreate = on\n replication-strategy = NetworkTopologyStrategy\n data-center-replication-factors = [\"" + dc + ":3\"]\n";
    return ConfigFactory.parseString(
            "pekko.loglevel = WARNING\n"
                + "pekko.test.timefactor = 4\n"
                + "pekko.persistence.journal.plugin = pekko.persistence.cassandra.journal\n"
                + "pekko.persistence.snapshot-store.plugin = pekko.persistence.cassandra.snapshot\n"
                + "pekko.persistence.cassandra.journal {" + replication + "}\n"
                + "pekko.persistence.cassandra.snapshot {" + replication + "}\n"
                + "pekko.persistence.cassandra.events-by-tag { first-time-bucket = \"" + yesterday + "T00:00\", eventual-consistency-delay = 1s }\n"
                + "pekko.persistence.cassandra.query.refresh-interval = 500ms\n"
                + "pekko.actor.serialization-bindings { \"Account$Stored\" = jackson-cbor }\n"
                + "datastax-java-driver.basic { contact-points = [" + hosts + "], load-balancing-policy.local-datacenter = " + dc + ", request.timeout = 15s }\n"
                + "datastax-java-driver.advanced { reconnection-policy.base-delay = 200ms, reconnection-policy.max-delay = 1s\n"
                + "  control-connection.schema-agreement.timeout = 30s, connection.connect-timeout = 10s, connection.init-query-timeout = 10s }\n"
                + "datastax-java-driver.profiles.pekko-persistence-cassandra-snapshot-profile.basic.request.consistency = QUORUM\n")
        .withFallback(ConfigFactory.load());
  }

  final ActorSystem<SpawnProtocol.Command> system = ActorSystem.create(SpawnProtocol.create(), "events", configuration());
  final Map<String, Integer> stored = new HashMap<>();
  final Map<String, ActorRef<Account.Command>> open = new HashMap<>();

  ActorRef<Account.Command> open(String id) throws Exception {
    ActorRef<Account.Command> account = open.get(id);
    if (account == null) {
      Behavior<Account.Command> behavior = Account.create(id, id.startsWith("kept"));
      account = AskPattern.<SpawnProtocol.Command, ActorRef<Account.Command>>ask(
              system, to -> new SpawnProtocol.Spawn<>(behavior, "", Props.empty(), to), ANSWER, system.scheduler())
          .toCompletableFuture().get();
      open.put(id, account);
    }
    return account;
  }

  /** Stops all accounts: the next command recovers them from the journal. */
  void stopAll() throws Exception {
    for (ActorRef<Account.Command> account : open.values()) account.tell(new Account.Stop());
    open.clear();
    Thread.sleep(500);
  }

  Account.Balance balance(String id) throws Exception {
    ActorRef<Account.Command> account = open(id);
    return AskPattern.<Account.Command, Account.Balance>ask(account, Account.Ask::new, Duration.ofSeconds(60), system.scheduler()).toCompletableFuture().get();
  }

  /** Deposits until it is answered, as a client that got no answer repeats its command. */
  void deposit(String id) throws Exception {
    int number = stored.getOrDefault(id, 0) + 1;
    long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(90);
    while (true) {
      try {
        ActorRef<Account.Command> account = open(id);
        AskPattern.<Account.Command, Account.Balance>ask(account, to -> new Account.Deposit(number, 3L * number, to), ANSWER, system.scheduler())
            .toCompletableFuture().get();
        stored.put(id, number);
        return;
      } catch (ExecutionException error) {
        System.err.println(id + " " + number + ": " + error);
        if (System.nanoTime() > until) throw error;
      }
    }
  }

  static long sum(int number) {
    return 3L * number * (number + 1) / 2;
  }

  <T> List<T> all(Source<T, ?> source) throws Exception {
    return source.runWith(Sink.seq(), system).toCompletableFuture().get(90, TimeUnit.SECONDS);
  }

  static boolean suite(String name) {
    return Runner.run(new String[] {"-s", name, "-eW"});
  }

  void run() throws Exception {
    CassandraReadJournal journal = PersistenceQuery.get(system).getReadJournalFor(CassandraReadJournal.class, CassandraReadJournal.Identifier());
    check("persist", () -> {
      for (int n = 0; n < 25; n++) for (int a = 0; a < ACCOUNTS; a++) deposit("account-" + a);
      for (int a = 0; a < ACCOUNTS; a++) same(balance("account-" + a).sum, sum(25), "balance");
    });
    check("journal_tck", () -> {
      if (!suite("JournalTck")) throw new AssertionError("a test of the TCK failed, see *** FAILED *** in the log");
    });
    check("snapshot_tck", () -> {
      if (!suite("SnapshotTck")) throw new AssertionError("a test of the TCK failed, see *** FAILED *** in the log");
    });
    check("recover", () -> {
      AtomicBoolean back = new AtomicBoolean();
      for (int n = 0; !back.get() || n < 25; n++) {
        for (int a = 0; a < ACCOUNTS; a++) deposit("account-" + a);
        for (int a = 0; a < 2; a++) deposit("kept-" + a);
        if (n == 10) {
          System.out.println("kill?");
          new Thread(() -> {
            try {
              System.in.read();
            } catch (java.io.IOException gone) {
              // The runner has ended: so does this.
            }
            back.set(true);
          }).start();
        }
        if (n % 20 == 15) stopAll();
      }
      stopAll();
      for (Map.Entry<String, Integer> one : stored.entrySet()) {
        Account.Balance found = balance(one.getKey());
        same(found.last, one.getValue(), "last deposit of " + one.getKey());
        same(found.sum, sum(one.getValue()), "balance of " + one.getKey());
      }
    });
    check("queries_by_persistence_id", () -> {
      for (int a = 0; a < ACCOUNTS; a++) {
        String id = "account-" + a;
        List<EventEnvelope> events = all(journal.currentEventsByPersistenceId(id, 0, Long.MAX_VALUE));
        List<Integer> numbers = events.stream().map(one -> ((Account.Deposited) one.event()).number).toList();
        List<Integer> expected = new ArrayList<>();
        for (int n = 1; n <= stored.get(id); n++) expected.add(n);
        same(numbers, expected, "events of " + id);
      }
    });
    check("queries_by_tag", () -> {
      int even = 0;
      for (int last : stored.values()) even += last / 2;
      List<EventEnvelope> events = List.of();
      // A tag's view follows the journal, some seconds behind.
      for (int attempt = 0; attempt < 30 && events.size() != even; attempt++) {
        events = all(journal.currentEventsByTag("even", Offset.noOffset()));
        if (events.size() != even) Thread.sleep(1000);
      }
      same(events.size(), even, "events tagged even");
      same(events.stream().map(one -> one.persistenceId() + "/" + one.sequenceNr()).distinct().count(), (long) even, "different events");
      Map<String, Long> last = new HashMap<>();
      for (EventEnvelope one : events) {
        Long before = last.put(one.persistenceId(), one.sequenceNr());
        if (before != null && before >= one.sequenceNr()) throw new AssertionError(one.persistenceId() + ": " + one.sequenceNr() + " after " + before);
      }
    });
    check("persistence_ids", () -> {
      TreeSet<String> ids = new TreeSet<>(all(journal.currentPersistenceIds()));
      for (String id : stored.keySet()) if (!ids.contains(id)) throw new AssertionError(id + " is not among " + ids);
    });
    check("snapshots", () -> {
      for (int n = 0; n < 60; n++) deposit("kept-0");
      stopAll();
      same(balance("kept-0").sum, sum(stored.get("kept-0")), "balance from a snapshot");
    });
    check("deleted", () -> {
      long first = 0;
      for (int attempt = 0; attempt < 30 && first <= 1; attempt++) {
        List<EventEnvelope> left = all(journal.currentEventsByPersistenceId("kept-0", 0, Long.MAX_VALUE));
        first = left.isEmpty() ? 0 : left.get(0).sequenceNr();
        if (first <= 1) Thread.sleep(500);
      }
      if (first <= 1) throw new AssertionError("no event was deleted after the snapshots");
    });
  }

  public static void main(String[] arguments) throws Exception {
    Events events = new Events();
    try {
      events.run();
    } catch (Throwable error) {
      error.printStackTrace();
      failed++;
    }
    System.out.flush();
    Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
  }
}

import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.config.DriverConfigLoader;
import com.datastax.oss.driver.api.core.config.DefaultDriverOption;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import zipkin2.DependencyLink;
import zipkin2.Endpoint;
import zipkin2.Span;
import zipkin2.storage.cassandra.CassandraStorage;

/**
 * Zipkin's storage: its schema, spans that are stored while a node is killed, and all that its server asks of it.
 *
 * The schema is Zipkin's own. Left out of it are the statements CREATE CUSTOM INDEX ... SASIIndex, which ScyllaDB
 * refuses too. Zipkin's searches are prepared all at once and some need those indexes: so spans are stored with search
 * enabled, which fills the tables of the searches, traces are read by Zipkin with search disabled, and the tables of
 * the searches are read by statements of this program. The runner sets the level to QUORUM, instead of LOCAL_ONE.
 */
public class Traces {
  static final int SPANS = 3;
  static final long NOW = System.currentTimeMillis();
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

  static CassandraStorage open(boolean search) {
    return CassandraStorage.newBuilder().contactPoints(System.getenv("HOSTS")).localDc(System.getenv("DATACENTER")).keyspace("zipkin2")
        .ensureSchema(false).searchEnabled(search).strictTraceId(true).autocompleteKeys(List.of("shop")).build();
  }

  static List<String> statements(String resource) throws IOException {
    String text;
    try (var in = CassandraStorage.class.getResourceAsStream("/" + resource)) {
      text = new String(in.readAllBytes(), StandardCharsets.UTF_8);
    }
    List<String> statements = new ArrayList<>();
    for (String one : text.split(";")) if (!one.isBlank() && !one.contains("SASIIndex")) statements.add(one.strip());
    return statements;
  }

  static String id(int trace) {
    return String.format("%016x%016x", 0xa, 0x5000 + trace);
  }

  static long time(int trace) {
    return (NOW - 600_000 + trace * 10L) * 1000;
  }

  static List<Span> trace(int trace) {
    Endpoint front = Endpoint.newBuilder().serviceName("front").ip("10.0.0.1").port(80).build();
    Endpoint back = Endpoint.newBuilder().serviceName("back").ip("2001:db8::1").port(8080).build();
    List<Span> spans = new ArrayList<>();
    for (int n = 0; n < SPANS; n++) {
      Span.Builder span = Span.newBuilder().traceId(id(trace)).id(String.format("%016x", n + 1)).name("operation-" + n)
          .kind(n % 2 == 0 ? Span.Kind.SERVER : Span.Kind.CLIENT).timestamp(time(trace) + n).duration(100L + trace)
          .localEndpoint(n % 2 == 0 ? front : back).remoteEndpoint(n % 2 == 0 ? back : front)
          .putTag("shop", "shop-" + trace % 5).putTag("path", "/über/" + trace).addAnnotation(time(trace) + n + 1, "begun");
      if (n > 0) span.parentId(String.format("%016x", n));
      spans.add(span.build());
    }
    return spans;
  }

  static CassandraStorage storage, reader;
  static CqlSession session;

  /** Stores until it succeeds, as a collector that keeps what it could not store. */
  static void store(int trace) throws Exception {
    for (int attempt = 1; ; attempt++) {
      try {
        storage.spanConsumer().accept(trace(trace)).execute();
        return;
      } catch (Exception error) {
        System.err.println("trace " + trace + ", attempt " + attempt + ": " + error);
        if (attempt == 60) throw error;
        Thread.sleep(200);
      }
    }
  }

  static Set<String> ids(List<List<Span>> traces) {
    Set<String> ids = new HashSet<>();
    for (List<Span> one : traces) ids.add(one.get(0).traceId());
    return ids;
  }

  /** The different values of a column, which is the first of what the statement selects. */
  static Set<String> values(String statement) {
    Set<String> values = new HashSet<>();
    for (var row : session.execute(statement)) values.add(row.getString(0));
    return values;
  }

  static int stored = 0;

  static void run() throws Exception {
    check("schema", () -> {
      String dc = System.getenv("DATACENTER");
      DriverConfigLoader slow = DriverConfigLoader.programmaticBuilder().withDuration(DefaultDriverOption.REQUEST_TIMEOUT, Duration.ofSeconds(30)).build();
      session = CqlSession.builder().addContactPoint(new InetSocketAddress(System.getenv("HOSTS").split(",")[0], 9042)).withLocalDatacenter(dc).withConfigLoader(slow).build();
      for (String resource : new String[] {"zipkin2-schema.cql", "zipkin2-schema-indexes.cql", "zipkin2-schema-upgrade-1.cql", "zipkin2-schema-upgrade-2.cql"}) {
        for (String statement : statements(resource)) {
          try {
            session.execute(statement.replace("'SimpleStrategy', 'replication_factor': '1'", "'NetworkTopologyStrategy', '" + dc + "': '3'"));
          } catch (Exception error) {
            throw new AssertionError(error.getMessage() + " [" + statement + "]", error);
          }
        }
      }
      session.execute("USE zipkin2");
      for (CassandraStorage one : new CassandraStorage[] {open(true), open(false)}) {
        if (!one.check().ok()) throw new AssertionError("Zipkin's own check", one.check().error());
        if (storage == null) storage = one;
        else reader = one;
      }
    });
    if (reader == null) return;
    check("spans", () -> {
      AtomicBoolean back = new AtomicBoolean();
      for (; !back.get() || stored < 200; stored++) {
        store(stored);
        if (stored == 60) {
          System.out.println("kill?");
          new Thread(() -> {
            try {
              System.in.read();
            } catch (IOException gone) {
              // The runner has ended: so does this.
            }
            back.set(true);
          }).start();
        }
      }
    });
    check("traces", () -> {
      for (int trace = 0; trace < stored; trace++) {
        Set<Span> found = new HashSet<>(reader.traces().getTrace(id(trace)).execute());
        same(found, new HashSet<>(trace(trace)), "trace " + trace);
      }
      List<String> some = List.of(id(3), id(5), id(stored - 1));
      same(ids(reader.traces().getTraces(some).execute()), new HashSet<>(some), "several traces");
    });
    check("search", () -> {
      Set<String> all = new HashSet<>();
      for (int trace = 0; trace < stored; trace++) all.add(id(trace));
      long bucket = time(0) / 1000 / 86_400_000;
      String buckets = " AND bucket IN (" + bucket + ", " + (bucket + 1) + ") AND ts > minTimeuuid(" + (NOW - 3_600_000) + ") AND ts < maxTimeuuid(" + (NOW + 3_600_000) + ") LIMIT 100000";
      same(values("SELECT trace_id FROM trace_by_service_span WHERE service = 'front' AND span = ''" + buckets), all, "by service");
      same(values("SELECT trace_id FROM trace_by_service_span WHERE service = 'front' AND span = 'operation-2'" + buckets), all, "by service and span");
      same(values("SELECT trace_id FROM trace_by_service_remote_service WHERE service = 'front' AND remote_service = 'back'" + buckets), all, "by remote service");
      same(values("SELECT trace_id FROM trace_by_service_span WHERE service = 'nowhere' AND span = ''" + buckets), Set.of(), "of no service");
    });
    check("names", () -> {
      same(values("SELECT DISTINCT service FROM span_by_service"), Set.of("front", "back"), "services");
      same(values("SELECT span FROM span_by_service WHERE service = 'front' LIMIT 1000"), Set.of("operation-0", "operation-2"), "spans");
      same(values("SELECT remote_service FROM remote_service_by_service WHERE service = 'front' LIMIT 1000"), Set.of("back"), "remote services");
    });
    check("autocomplete", () -> {
      same(storage.autocompleteTags().getKeys().execute(), List.of("shop"), "keys");
      same(new HashSet<>(storage.autocompleteTags().getValues("shop").execute()), Set.of("shop-0", "shop-1", "shop-2", "shop-3", "shop-4"), "values");
    });
    check("dependencies", () -> {
      session.execute("INSERT INTO dependency (day, parent, child, calls, errors) VALUES ('" + Instant.ofEpochMilli(NOW).toString().substring(0, 10) + "', 'front', 'back', 7, 1)");
      List<DependencyLink> links = reader.spanStore().getDependencies(NOW, 86_400_000).execute();
      same(links, List.of(DependencyLink.newBuilder().parent("front").child("back").callCount(7).errorCount(1).build()), "links");
    });
  }

  public static void main(String[] arguments) {
    try {
      run();
    } catch (Throwable error) {
      error.printStackTrace();
      failed++;
    }
    System.out.flush();
    Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
  }
}

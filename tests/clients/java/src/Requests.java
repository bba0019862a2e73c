import com.datastax.dse.driver.api.core.cql.reactive.ReactiveRow;
import com.datastax.oss.driver.api.core.CqlIdentifier;
import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.DefaultConsistencyLevel;
import com.datastax.oss.driver.api.core.cql.AsyncResultSet;
import com.datastax.oss.driver.api.core.cql.BatchStatement;
import com.datastax.oss.driver.api.core.cql.BatchStatementBuilder;
import com.datastax.oss.driver.api.core.cql.DefaultBatchType;
import com.datastax.oss.driver.api.core.cql.ExecutionInfo;
import com.datastax.oss.driver.api.core.cql.PreparedStatement;
import com.datastax.oss.driver.api.core.cql.QueryTrace;
import com.datastax.oss.driver.api.core.cql.ResultSet;
import com.datastax.oss.driver.api.core.cql.Row;
import com.datastax.oss.driver.api.core.cql.SimpleStatement;
import com.datastax.oss.driver.api.core.type.codec.ExtraTypeCodecs;
import com.datastax.oss.driver.api.core.type.codec.TypeCodec;
import com.datastax.oss.driver.api.core.type.codec.TypeCodecs;
import com.datastax.oss.driver.api.core.type.codec.registry.MutableCodecRegistry;
import com.datastax.oss.driver.api.core.type.reflect.GenericType;
import java.nio.ByteBuffer;
import java.time.LocalDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import org.reactivestreams.Publisher;
import org.reactivestreams.Subscriber;
import org.reactivestreams.Subscription;

/** What applications ask of a request besides its rows: publishers, payloads, warnings, traces, keyspaces, the time, codecs. */
final class Requests {
  private static final int ROWS = 200;

  private final CqlSession session;
  private final String keyspace;

  Requests(CqlSession session, String keyspace) {
    this.session = session;
    this.keyspace = keyspace;
  }

  private boolean fifthVersion() {
    return session.getContext().getProtocolVersion().getCode() >= 5;
  }

  /** Asks a publisher for a few rows at a time. */
  private static final class Collector implements Subscriber<ReactiveRow> {
    private final CompletableFuture<List<Integer>> done = new CompletableFuture<>();
    private final List<Integer> seen = new ArrayList<>();
    private Subscription subscription;

    static List<Integer> all(Publisher<? extends ReactiveRow> rows) throws Exception {
      Collector collector = new Collector();
      rows.subscribe(collector);
      return collector.done.get();
    }

    @Override
    public void onSubscribe(Subscription subscription) {
      this.subscription = subscription;
      subscription.request(3);
    }

    @Override
    public void onNext(ReactiveRow row) {
      seen.add(row.getInt(0));
      if (seen.size() % 3 == 0) {
        subscription.request(3);
      }
    }

    @Override
    public void onError(Throwable error) {
      done.completeExceptionally(error);
    }

    @Override
    public void onComplete() {
      done.complete(seen);
    }
  }

  /** Pages by publishers and by futures, and a result of many megabytes. */
  void streams() throws Exception {
    session.execute("CREATE TABLE streamed (pk int, ck int, v blob, PRIMARY KEY (pk, ck))");
    PreparedStatement insert = session.prepare("INSERT INTO streamed (pk, ck, v) VALUES (?, ?, ?)");
    for (int ck = 0; ck < ROWS; ck++) {
      Collector.all(session.executeReactive(insert.bind(1, ck, ByteBuffer.wrap(new byte[10]))));
    }
    SimpleStatement select = SimpleStatement.newInstance("SELECT ck FROM streamed WHERE pk = 1").setPageSize(30);
    Client.same(Collector.all(session.executeReactive(select)), Client.upTo(ROWS), "reactive rows");

    List<Integer> seen = new ArrayList<>();
    int pages = 1;
    AsyncResultSet page = session.executeAsync(select).toCompletableFuture().get();
    while (true) {
      page.currentPage().forEach(row -> seen.add(row.getInt(0)));
      if (!page.hasMorePages()) {
        break;
      }
      page = page.fetchNextPage().toCompletableFuture().get();
      pages++;
    }
    Client.same(seen, Client.upTo(ROWS), "rows by futures");
    Client.same(pages, (ROWS + 29) / 30, "pages");

    int megabytes = 12;
    byte[] large = new byte[1 << 20];
    Arrays.fill(large, (byte) 7);
    for (int ck = 0; ck < megabytes; ck++) {
      session.execute(insert.bind(2, ck, ByteBuffer.wrap(large)));
    }
    int bytes = 0;
    for (Row row : session.execute(SimpleStatement.newInstance("SELECT v FROM streamed WHERE pk = 2").setPageSize(5000))) {
      bytes += row.getByteBuffer(0).remaining();
    }
    Client.same(bytes, megabytes << 20, "bytes");
  }

  /** Payloads that the node does not know, warnings of the node, traces of every kind of request, speculative executions. */
  void extras() throws Exception {
    session.execute("CREATE TABLE extras (pk int PRIMARY KEY, v text)");
    PreparedStatement insert = session.prepare(SimpleStatement.newInstance("INSERT INTO extras (pk, v) VALUES (?, ?)").setCustomPayload(payload()));
    session.execute(insert.bind(1, "x").setCustomPayload(payload()));
    BatchStatementBuilder batch = BatchStatement.builder(DefaultBatchType.UNLOGGED).addStatement(insert.bind(2, "y")).addStatement(insert.bind(3, "z"));
    session.execute(batch.build().setCustomPayload(payload()));
    Client.same(session.execute("SELECT * FROM extras").all().size(), 3, "rows");

    session.execute("DROP KEYSPACE IF EXISTS java_warned");
    ResultSet warned = session.execute("CREATE KEYSPACE java_warned WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}");
    Client.same(warned.getExecutionInfo().getWarnings().isEmpty(), false, "a warning of the replication factor");
    session.execute("DROP KEYSPACE java_warned");

    for (ExecutionInfo info : List.of(session.execute(insert.bind(4, "w").setTracing(true)).getExecutionInfo(),
        session.execute(batch.build().setTracing(true)).getExecutionInfo(),
        session.execute(SimpleStatement.newInstance("SELECT v FROM extras WHERE pk = ?", 4).setTracing(true)).getExecutionInfo())) {
      QueryTrace trace = info.getQueryTraceAsync().toCompletableFuture().get();
      Client.same(trace.getEvents().isEmpty() || trace.getRequestType().isEmpty() || trace.getDurationMicros() < 0, false, "trace " + trace);
    }

    List<CompletionStage<AsyncResultSet>> running = new ArrayList<>();
    for (int pk = 0; pk < 100; pk++) {
      SimpleStatement read = SimpleStatement.newInstance("SELECT v FROM extras WHERE pk = ?", pk % 4 + 1).setExecutionProfileName("eager").setIdempotent(true);
      running.add(session.executeAsync(read.setConsistencyLevel(DefaultConsistencyLevel.LOCAL_QUORUM)));
    }
    for (CompletionStage<AsyncResultSet> one : running) {
      Client.same(one.toCompletableFuture().get().one() != null, true, "a row read speculatively");
    }
  }

  private static Map<String, ByteBuffer> payload() {
    return Map.of("application-key", ByteBuffer.wrap(new byte[] {1, 2, 3}));
  }

  /** USE, names with a keyspace, and (from version 5 on) a keyspace and a time of each request. */
  void keyspaces() {
    session.execute("DROP KEYSPACE IF EXISTS java_other");
    session.execute("CREATE KEYSPACE java_other WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}");
    session.execute("CREATE TABLE java_other.placed (pk int PRIMARY KEY, v text)");
    session.execute("CREATE TABLE placed (pk int PRIMARY KEY, v text)");
    session.execute("INSERT INTO placed (pk, v) VALUES (1, 'first')");
    session.execute("INSERT INTO java_other.placed (pk, v) VALUES (1, 'other')");
    PreparedStatement select = session.prepare("SELECT v FROM placed WHERE pk = 1");
    session.execute("USE java_other");
    Client.same(session.getKeyspace().map(CqlIdentifier::asInternal).orElse(""), "java_other", "keyspace of the session");
    Client.same(session.execute("SELECT v FROM placed WHERE pk = 1").one().getString(0), "other", "after USE");
    Client.same(session.execute(select.bind()).one().getString(0), "first", "prepared before USE");
    session.execute("USE " + keyspace);
    Client.same(session.execute("SELECT v FROM placed WHERE pk = 1").one().getString(0), "first", "after USE back");
    if (fifthVersion()) {
      SimpleStatement there = SimpleStatement.newInstance("SELECT v FROM placed WHERE pk = 1").setKeyspace("java_other");
      Client.same(session.execute(there).one().getString(0), "other", "a keyspace of the request");
      PreparedStatement prepared = session.prepare(there);
      Client.same(session.execute(prepared.bind()).one().getString(0), "other", "a keyspace of the prepared statement");
      session.execute("INSERT INTO placed (pk, v) VALUES (2, 'short') USING TTL 1000");
      int now = (int) (System.currentTimeMillis() / 1000);
      SimpleStatement left = SimpleStatement.newInstance("SELECT ttl(v) FROM placed WHERE pk = 2");
      int later = session.execute(left.setNowInSeconds(now + 500)).one().getInt(0);
      Client.same(later > 480 && later < 520, true, "seconds left half way: " + later);
      Client.same(session.execute(left.setNowInSeconds(now + 2000)).one() == null, true, "gone by then");
    }
    session.execute("DROP KEYSPACE java_other");
  }

  private enum Colour {
    RED,
    GREEN
  }

  /** The application's own types through the driver's codecs: the server sees the same bytes. */
  void codecs() {
    MutableCodecRegistry registry = (MutableCodecRegistry) session.getContext().getCodecRegistry();
    TypeCodec<Optional<String>> optional = ExtraTypeCodecs.optionalOf(TypeCodecs.TEXT);
    registry.register(ExtraTypeCodecs.enumNamesOf(Colour.class), ExtraTypeCodecs.LOCAL_TIMESTAMP_UTC, ExtraTypeCodecs.INT_LIST_TO_ARRAY, ExtraTypeCodecs.BLOB_TO_ARRAY, optional);
    session.execute("CREATE TABLE coded (pk int PRIMARY KEY, colour text, at timestamp, numbers list<int>, bytes blob, maybe text)");
    PreparedStatement insert = session.prepare("INSERT INTO coded (pk, colour, at, numbers, bytes, maybe) VALUES (?, ?, ?, ?, ?, ?)");
    LocalDateTime at = LocalDateTime.of(2024, 2, 29, 12, 30, 1, 123_000_000);
    session.execute(insert.boundStatementBuilder().setInt(0, 1).set(1, Colour.GREEN, Colour.class).set(2, at, LocalDateTime.class).set(3, new int[] {3, 1}, int[].class)
        .set(4, new byte[] {1, -1}, byte[].class).set(5, Optional.empty(), optional).build());
    Row row = session.execute("SELECT * FROM coded WHERE pk = 1").one();
    Client.same(row.get("colour", Colour.class), Colour.GREEN, "enum");
    Client.same(row.get("at", LocalDateTime.class), at, "local time");
    Client.same(Arrays.toString(row.get("numbers", int[].class)) + Arrays.toString(row.get("bytes", byte[].class)), "[3, 1][1, -1]", "arrays");
    Client.same(row.get("maybe", optional), Optional.empty(), "optional");
    Client.same(row.get("numbers", GenericType.listOf(Integer.class)), List.of(3, 1), "list");
    Client.same(row.getFormattedContents().contains("colour:'GREEN'"), true, row.getFormattedContents());
  }
}

import com.datastax.oss.driver.api.core.CqlIdentifier;
import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.CqlSessionBuilder;
import com.datastax.oss.driver.api.core.DefaultConsistencyLevel;
import com.datastax.oss.driver.api.core.config.DefaultDriverOption;
import com.datastax.oss.driver.api.core.config.DriverConfigLoader;
import com.datastax.oss.driver.api.core.config.ProgrammaticDriverConfigLoaderBuilder;
import com.datastax.oss.driver.api.core.cql.AsyncResultSet;
import com.datastax.oss.driver.api.core.cql.BatchStatement;
import com.datastax.oss.driver.api.core.cql.BatchStatementBuilder;
import com.datastax.oss.driver.api.core.cql.BoundStatement;
import com.datastax.oss.driver.api.core.cql.DefaultBatchType;
import com.datastax.oss.driver.api.core.cql.PreparedStatement;
import com.datastax.oss.driver.api.core.cql.QueryTrace;
import com.datastax.oss.driver.api.core.cql.ResultSet;
import com.datastax.oss.driver.api.core.cql.Row;
import com.datastax.oss.driver.api.core.cql.SimpleStatement;
import com.datastax.oss.driver.api.core.data.CqlDuration;
import com.datastax.oss.driver.api.core.data.CqlVector;
import com.datastax.oss.driver.api.core.metadata.schema.ClusteringOrder;
import com.datastax.oss.driver.api.core.metadata.schema.KeyspaceMetadata;
import com.datastax.oss.driver.api.core.metadata.schema.TableMetadata;
import com.datastax.oss.driver.api.core.servererrors.AlreadyExistsException;
import com.datastax.oss.driver.api.core.servererrors.InvalidConfigurationInQueryException;
import com.datastax.oss.driver.api.core.servererrors.InvalidQueryException;
import com.datastax.oss.driver.api.core.servererrors.SyntaxError;
import com.datastax.oss.driver.api.core.type.DataType;
import com.datastax.oss.driver.api.core.type.TupleType;
import com.datastax.oss.driver.api.core.type.UserDefinedType;
import com.datastax.oss.driver.internal.core.specex.ConstantSpeculativeExecutionPolicy;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletionStage;

/**
 * A Java application on driver 4, Apache's or ScyllaDB's (the same interface), checked against a running node.
 *
 * <p>{@code java Client HOST [--protocol V4] [--compression lz4] [--check NAME]} prints {@code ok NAME} or {@code FAILED NAME: why} for each
 * check and ends with status 1 if one failed. {@code --check} runs only that check. It asks for what only the caller can do, and reads a line,
 * which is {@code no} if the caller cannot: {@code restart?} when the node may be restarted ({@code done}), and {@code refusals?} for the
 * numbers of reads and writes that the nodes have refused by rate limits.
 */
public final class Client {
  private static final String KEYSPACE = "java_client";
  private static final Duration RESTART_TAKES = Duration.ofSeconds(60);

  private interface Check {
    void run() throws Exception;
  }

  private final String host;
  private final String protocol;
  private final String compression;
  /** The name of the only check to run; null for all. */
  private final String only;
  private final BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
  private CqlSession session;
  private int failed;

  private Client(String host, String protocol, String compression, String only) {
    this.host = host;
    this.protocol = protocol;
    this.compression = compression;
    this.only = only;
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length < 1) {
      System.err.println("usage: Client HOST [--protocol V4] [--compression lz4] [--check NAME]");
      System.exit(2);
    }
    String protocol = null;
    String compression = null;
    String only = null;
    for (int i = 1; i + 1 < arguments.length; i += 2) {
      switch (arguments[i]) {
        case "--protocol" -> protocol = arguments[i + 1];
        case "--compression" -> compression = arguments[i + 1];
        case "--check" -> only = arguments[i + 1];
        default -> throw new IllegalArgumentException(arguments[i]);
      }
    }
    Client client = new Client(arguments[0], protocol, compression, only);
    try {
      client.run();
    } catch (Exception error) {
      System.out.println("FAILED connect: " + error);
      client.failed++;
    }
    System.out.flush();
    System.exit(client.failed == 0 ? 0 : 1);
  }

  private CqlSession connect(String keyspace) {
    ProgrammaticDriverConfigLoaderBuilder config =
        DriverConfigLoader.programmaticBuilder()
            .withDuration(DefaultDriverOption.REQUEST_TIMEOUT, Duration.ofSeconds(30))
            .withDuration(DefaultDriverOption.CONNECTION_CONNECT_TIMEOUT, Duration.ofSeconds(30))
            .withDuration(DefaultDriverOption.CONNECTION_INIT_QUERY_TIMEOUT, Duration.ofSeconds(30))
            .withDuration(DefaultDriverOption.CONNECTION_SET_KEYSPACE_TIMEOUT, Duration.ofSeconds(30))
            .withDuration(DefaultDriverOption.CONTROL_CONNECTION_TIMEOUT, Duration.ofSeconds(30))
            .withDuration(DefaultDriverOption.METADATA_SCHEMA_REQUEST_TIMEOUT, Duration.ofSeconds(30))
            // It waits for more changes before it reads the schema again: a second unless this is set.
            .withDuration(DefaultDriverOption.METADATA_SCHEMA_WINDOW, Duration.ofMillis(10))
            .withDuration(DefaultDriverOption.RECONNECTION_BASE_DELAY, Duration.ofMillis(200))
            .withDuration(DefaultDriverOption.RECONNECTION_MAX_DELAY, Duration.ofSeconds(1))
            // For requests that ask another node, where there is one, when the first does not answer at once.
            .startProfile("eager")
            .withClass(DefaultDriverOption.SPECULATIVE_EXECUTION_POLICY_CLASS, ConstantSpeculativeExecutionPolicy.class)
            .withInt(DefaultDriverOption.SPECULATIVE_EXECUTION_MAX, 3)
            .withDuration(DefaultDriverOption.SPECULATIVE_EXECUTION_DELAY, Duration.ofMillis(1))
            .endProfile();
    if (protocol != null) {
      config = config.withString(DefaultDriverOption.PROTOCOL_VERSION, protocol);
    }
    if (compression != null) {
      config = config.withString(DefaultDriverOption.PROTOCOL_COMPRESSION, compression);
    }
    CqlSessionBuilder builder =
        CqlSession.builder()
            .addContactPoint(new InetSocketAddress(host, 9042))
            .withLocalDatacenter("datacenter1")
            .withConfigLoader(config.build());
    return (keyspace == null ? builder : builder.withKeyspace(keyspace)).build();
  }

  private void run() {
    try (CqlSession first = connect(null)) {
      System.out.println("driver " + first.getContext().getProtocolVersion());
      first.execute("DROP KEYSPACE IF EXISTS " + KEYSPACE);
      first.execute("CREATE KEYSPACE " + KEYSPACE + " WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}");
    }
    session = connect(KEYSPACE);
    check("types", this::types);
    check("paging", this::paging);
    check("batches", this::batches);
    check("null_and_unset", this::nullAndUnset);
    check("named_values", this::namedValues);
    check("schema_change", this::schemaChange);
    check("metadata", this::metadata);
    check("errors", this::errors);
    check("concurrency", this::concurrency);
    check("tracing", this::tracing);
    check("counters", this::counters);
    Requests requests = new Requests(session, KEYSPACE);
    check("streams", requests::streams);
    check("extras", requests::extras);
    check("keyspaces", requests::keyspaces);
    check("codecs", requests::codecs);
    check("mapping", () -> Mapping.check(session, KEYSPACE));
    check("builder", () -> Builder.check(session, KEYSPACE));
    check("rate_limits", new Refusals(session, KEYSPACE, this)::rateLimits);
    check("restart", this::restart);
    session.close();
  }

  private void check(String name, Check check) {
    if (only != null && !only.equals(name)) {
      return;
    }
    try {
      check.run();
      System.out.println("ok " + name);
    } catch (Exception | AssertionError error) {
      System.out.println("FAILED " + name + ": " + String.valueOf(error).replace('\n', ' '));
      failed++;
    }
  }

  static void same(Object got, Object wanted, String what) {
    if (!wanted.equals(got)) {
      throw new AssertionError(what + ": got " + shown(got) + ", expected " + shown(wanted));
    }
  }

  private static String shown(Object value) {
    String text = String.valueOf(value);
    return text.length() > 100 ? text.substring(0, 100) + "..." : text;
  }

  private static ByteBuffer bytes(int... values) {
    ByteBuffer buffer = ByteBuffer.allocate(values.length);
    for (int value : values) {
      buffer.put((byte) value);
    }
    buffer.flip();
    return buffer;
  }

  private static Set<Object> set(Object... values) {
    return new LinkedHashSet<>(Arrays.asList(values));
  }

  private static Map<Object, Object> map(Object... values) {
    Map<Object, Object> made = new LinkedHashMap<>();
    for (int i = 0; i < values.length; i += 2) {
      made.put(values[i], values[i + 1]);
    }
    return made;
  }

  /** Every type through prepared statements: extremes, empty collections, nesting. */
  private void types() throws Exception {
    Map<String, List<Object>> cases = new LinkedHashMap<>();
    UUID uuid = UUID.fromString("d2177dd0-eaa2-11de-a572-001b779c76e3");
    BigInteger huge = new BigInteger("-123456789012345678901234567890123456789");
    cases.put("ascii", List.of("", "plain ~"));
    cases.put("text", List.of("", "häßlich 漢字 🦀", "long ".repeat(20_000)));
    cases.put("blob", List.of(bytes(), bytes(0, 1, 255)));
    cases.put("boolean", List.of(true, false));
    cases.put("tinyint", List.of(Byte.MIN_VALUE, Byte.MAX_VALUE));
    cases.put("smallint", List.of(Short.MIN_VALUE, Short.MAX_VALUE));
    cases.put("int", List.of(Integer.MIN_VALUE, -1, Integer.MAX_VALUE));
    cases.put("bigint", List.of(Long.MIN_VALUE, Long.MAX_VALUE));
    cases.put("varint", List.of(BigInteger.ZERO, BigInteger.valueOf(-129), huge));
    cases.put("decimal", List.of(new BigDecimal("-12345.678900"), BigDecimal.ZERO, new BigDecimal(huge, 30), new BigDecimal(huge, -7)));
    cases.put("float", List.of(1.5f, Float.POSITIVE_INFINITY, -0.0f, Float.NaN));
    cases.put("double", List.of(Double.MAX_VALUE, 1e-300, Double.NEGATIVE_INFINITY));
    cases.put("timestamp", List.of(Instant.ofEpochMilli(1_700_000_000_123L), Instant.ofEpochMilli(-1)));
    cases.put("date", List.of(LocalDate.of(2024, 2, 29), LocalDate.of(1601, 1, 1), LocalDate.of(-4712, 1, 1)));
    cases.put("time", List.of(LocalTime.MIDNIGHT, LocalTime.ofNanoOfDay(86_399_999_999_999L)));
    cases.put("duration", List.of(CqlDuration.newInstance(1, 2, 3), CqlDuration.newInstance(-14, -1, -5_000_000_000L)));
    cases.put("uuid", List.of(uuid));
    cases.put("timeuuid", List.of(uuid));
    cases.put("inet", List.of(InetAddress.getByName("255.1.2.3"), InetAddress.getByName("2001:db8::8a2e:370:7334")));
    cases.put("list<int>", List.of(List.of(3, 1, 3)));
    cases.put("set<text>", List.of(set("a", "b")));
    cases.put("map<int, text>", List.of(map(-1, "minus", 1, "one")));
    cases.put("frozen<list<text>>", List.of(List.of(), List.of("a", "")));
    cases.put("frozen<map<text, frozen<set<int>>>>", List.of(map("k", set(1, 2))));
    cases.put("map<text, frozen<list<frozen<set<int>>>>>", List.of(map("k", List.of(set(1, 2), set()))));
    cases.put("vector<float, 3>", List.of(CqlVector.newInstance(1f, -2.5f, 0f)));
    int number = 0;
    for (Map.Entry<String, List<Object>> one : cases.entrySet()) {
      roundTrip("type_" + number++, one.getKey(), one.getValue());
    }
    session.execute("CREATE TYPE point (x int, y text)");
    UserDefinedType point = userType("point");
    Object first = point.newValue(1, "y");
    Object second = point.newValue().setInt("x", -5);
    roundTrip("points", "point", List.of(first));
    roundTrip("frozen_points", "frozen<point>", List.of(first, second));
    roundTrip("lists_of_points", "list<frozen<point>>", List.of(List.of(first, second)));
    roundTrip("points_by_name", "map<text, frozen<point>>", List.of(map("a", first)));
    session.execute("CREATE TABLE tuples (pk int PRIMARY KEY, v tuple<int, text, frozen<list<int>>>)");
    PreparedStatement insert = session.prepare("INSERT INTO tuples (pk, v) VALUES (?, ?)");
    TupleType tuple = (TupleType) insert.getVariableDefinitions().get(1).getType();
    Object value = tuple.newValue(5, "five", List.of(1, 2));
    session.execute(insert.bind(1, value));
    same(session.execute("SELECT v FROM tuples WHERE pk = 1").one().getObject(0), value, "tuple");
  }

  private UserDefinedType userType(String name) {
    KeyspaceMetadata keyspace = session.getMetadata().getKeyspace(KEYSPACE).orElseThrow(() -> new AssertionError("no metadata of the keyspace"));
    return keyspace.getUserDefinedType(name).orElseThrow(() -> new AssertionError("no metadata of type " + name));
  }

  private void roundTrip(String table, String type, List<Object> values) {
    session.execute("CREATE TABLE " + table + " (pk int PRIMARY KEY, v " + type + ")");
    PreparedStatement insert = session.prepare("INSERT INTO " + table + " (pk, v) VALUES (?, ?)");
    PreparedStatement select = session.prepare("SELECT v FROM " + table + " WHERE pk = ?");
    for (int pk = 0; pk < values.size(); pk++) {
      session.execute(insert.bind(pk, values.get(pk)));
      same(session.execute(select.bind(pk)).one().getObject(0), values.get(pk), type);
      same(session.execute("SELECT v FROM " + table + " WHERE pk = " + pk).one().getObject("v"), values.get(pk), type + " unprepared");
    }
    same(session.execute(select.bind(-1)).one() == null, true, type + ": no row for a key that was never written");
  }

  static List<Integer> upTo(int n) {
    List<Integer> all = new ArrayList<>();
    for (int i = 0; i < n; i++) {
      all.add(i);
    }
    return all;
  }

  private static List<Integer> ints(ResultSet rows) {
    List<Integer> all = new ArrayList<>();
    rows.forEach(row -> all.add(row.getInt(0)));
    return all;
  }

  private void paging() {
    int rows = 250;
    session.execute("CREATE TABLE paged (pk int, ck int, v text, PRIMARY KEY (pk, ck))");
    PreparedStatement insert = session.prepare("INSERT INTO paged (pk, ck, v) VALUES (?, ?, ?)");
    for (int ck = 0; ck < rows; ck++) {
      session.execute(insert.bind(7, ck, "value " + ck));
    }
    PreparedStatement select = session.prepare("SELECT ck FROM paged WHERE pk = ?");
    for (int size : new int[] {1, 7, 100, rows, rows + 1}) {
      same(ints(session.execute(select.bind(7).setPageSize(size))), upTo(rows), "page size " + size);
    }
    // A page at a time, every other one by another session that knows nothing but the state.
    try (CqlSession other = connect(KEYSPACE)) {
      PreparedStatement otherSelect = other.prepare("SELECT ck FROM paged WHERE pk = ?");
      List<Integer> got = new ArrayList<>();
      ByteBuffer state = null;
      int page = 0;
      do {
        BoundStatement bound = (page % 2 == 0 ? select : otherSelect).bind(7).setPageSize(60).setPagingState(state);
        ResultSet result = (page % 2 == 0 ? session : other).execute(bound);
        int n = result.getAvailableWithoutFetching();
        same(n <= 60, true, "a page of " + n);
        for (int i = 0; i < n; i++) {
          got.add(result.one().getInt(0));
        }
        state = result.getExecutionInfo().getPagingState();
        page++;
      } while (state != null);
      same(got, upTo(rows), "page by page");
    }
    SimpleStatement newest = SimpleStatement.newInstance("SELECT ck FROM paged WHERE pk = 7 ORDER BY ck DESC LIMIT 25").setPageSize(10);
    List<Integer> seen = ints(session.execute(newest));
    same(seen.size() == 25 && seen.get(0) == rows - 1 && seen.get(24) == rows - 25, true, "the newest are " + seen);
  }

  private void batches() {
    session.execute("CREATE TABLE batched (pk int, ck int, v int, PRIMARY KEY (pk, ck))");
    PreparedStatement insert = session.prepare("INSERT INTO batched (pk, ck, v) VALUES (?, ?, ?)");
    PreparedStatement remove = session.prepare("DELETE FROM batched WHERE pk = ? AND ck = ?");
    int pk = 0;
    for (DefaultBatchType type : new DefaultBatchType[] {DefaultBatchType.LOGGED, DefaultBatchType.UNLOGGED}) {
      pk++;
      session.execute(insert.bind(pk, 9, 9));
      BatchStatementBuilder batch = BatchStatement.builder(type);
      batch.addStatement(insert.bind(pk, 1, 11));
      batch.addStatement(insert.bind(pk, 2, 22));
      batch.addStatement(SimpleStatement.newInstance("INSERT INTO batched (pk, ck, v) VALUES (?, 3, 33)", pk));
      batch.addStatement(remove.bind(pk, 9));
      session.execute(batch.build());
      same(ints(session.execute("SELECT v FROM batched WHERE pk = " + pk)), List.of(11, 22, 33), type.toString());
    }
  }

  private void nullAndUnset() {
    session.execute("CREATE TABLE holes (pk int PRIMARY KEY, a int, b text)");
    PreparedStatement insert = session.prepare("INSERT INTO holes (pk, a, b) VALUES (:pk, :a, :b)");
    session.execute(insert.bind(1, 5, "five"));
    same(holes(), "5 five", "both");
    session.execute(insert.boundStatementBuilder().setInt("pk", 1).setString("b", "six").build());
    same(holes(), "5 six", "a left unset");
    session.execute(insert.boundStatementBuilder().setInt("pk", 1).setToNull("a").build());
    same(holes(), "null six", "a null, b unset");
    session.execute(insert.boundStatementBuilder().setInt("pk", 1).setString("b", "").build());
    same(holes(), "null ", "b empty");
  }

  private String holes() {
    Row row = session.execute("SELECT a, b FROM holes WHERE pk = 1").one();
    return row.getObject("a") + " " + row.getString("b");
  }

  /** Values by name in a statement that is not prepared, with a timestamp and a level of its own. */
  private void namedValues() {
    session.execute("CREATE TABLE named (pk int PRIMARY KEY, v text)");
    SimpleStatement insert = SimpleStatement.newInstance("INSERT INTO named (pk, v) VALUES (:key, :value)", Map.of("key", 1, "value", "x"));
    session.execute(insert.setQueryTimestamp(1234567).setConsistencyLevel(DefaultConsistencyLevel.QUORUM));
    Row row = session.execute(SimpleStatement.newInstance("SELECT v, writetime(v) FROM named WHERE pk = :key", Map.of("key", 1))).one();
    same(row.getString(0) + row.getLong(1), "x1234567", "row");
  }

  /** Prepared statements before and after their table changes. */
  private void schemaChange() {
    session.execute("CREATE TABLE changing (pk int PRIMARY KEY, v int)");
    session.execute("INSERT INTO changing (pk, v) VALUES (1, 10)");
    PreparedStatement all = session.prepare("SELECT * FROM changing WHERE pk = ?");
    same(names(session.execute(all.bind(1)).one()), "pk v ", "before");
    session.execute("ALTER TABLE changing ADD w text");
    session.execute("UPDATE changing SET w = 'new' WHERE pk = 1");
    Row row = session.execute(all.bind(1)).one();
    same(names(row) + row.getInt("v"), "pk v w 10", "with a column more");
    same(row.getString("w"), "new", "the new column");
    session.execute("ALTER TABLE changing DROP v");
    row = session.execute(all.bind(1)).one();
    same(names(row) + row.getString("w"), "pk w new", "with a column less");
    session.execute("DROP TABLE changing");
    session.execute("CREATE TABLE changing (pk int PRIMARY KEY, other text)");
    same(session.execute(all.bind(1)).one() == null, true, "a new table of the same name");
  }

  private static String names(Row row) {
    StringBuilder names = new StringBuilder();
    row.getColumnDefinitions().forEach(column -> names.append(column.getName().asInternal()).append(' '));
    return names.toString();
  }

  private TableMetadata table(String name) {
    return session.getMetadata().getKeyspace(KEYSPACE).flatMap(keyspace -> keyspace.getTable(name)).orElse(null);
  }

  private void metadata() {
    session.execute("CREATE TABLE described (a int, b text, c timeuuid, m map<text, frozen<list<int>>>, s set<int> static, PRIMARY KEY ((a, b), c))"
        + " WITH CLUSTERING ORDER BY (c DESC) AND comment = 'described' AND gc_grace_seconds = 77");
    TableMetadata table = table("described");
    same(table != null, true, "the table is in the metadata");
    same(table.getPartitionKey().size(), 2, "partition key");
    same(table.getClusteringColumns().values().iterator().next(), ClusteringOrder.DESC, "order");
    same(table.getColumn("s").get().isStatic(), true, "static");
    DataType map = table.getColumn("m").get().getType();
    same(map.asCql(true, true), "map<text, frozen<list<int>>>", "type");
    same(table.getOptions().get(CqlIdentifier.fromInternal("comment")), "described", "comment");
    // What the driver describes makes the same table again.
    String text = table.describe(false);
    session.execute("DROP TABLE described");
    same(table("described") == null, true, "the dropped table has left the metadata");
    session.execute(text);
    same(table("described").describe(false), text, "described again");
    same(session.getMetadata().getTokenMap().isPresent(), true, "token map");
    same(session.checkSchemaAgreement(), true, "schema agreement");
  }

  private void errors() {
    refused("SELEC * FROM paged", SyntaxError.class);
    refused("SELECT nothing FROM paged", InvalidQueryException.class);
    refused("SELECT * FROM no_such_table", InvalidQueryException.class);
    refused("CREATE TABLE paged (pk int PRIMARY KEY)", AlreadyExistsException.class);
    refused("SELECT * FROM paged WHERE v = 'x'", InvalidQueryException.class);
    refused("CREATE KEYSPACE no_class WITH replication = {'class': 'NoSuchStrategy'}", InvalidConfigurationInQueryException.class);
  }

  private void refused(String text, Class<? extends Exception> error) {
    try {
      session.execute(text);
    } catch (RuntimeException caught) {
      same(caught.getClass(), error, text + ": " + caught.getMessage());
      return;
    }
    throw new AssertionError("not refused: " + text);
  }

  private void concurrency() throws Exception {
    session.execute("CREATE TABLE busy (pk int PRIMARY KEY, v int)");
    PreparedStatement insert = session.prepare("INSERT INTO busy (pk, v) VALUES (?, ?)");
    PreparedStatement select = session.prepare("SELECT v FROM busy WHERE pk = ?");
    int rows = 500;
    List<CompletionStage<AsyncResultSet>> running = new ArrayList<>();
    for (int pk = 0; pk < rows; pk++) {
      running.add(session.executeAsync(insert.bind(pk, pk * 3)));
    }
    for (CompletionStage<AsyncResultSet> one : running) {
      one.toCompletableFuture().get();
    }
    running.clear();
    for (int pk = 0; pk < rows; pk++) {
      running.add(session.executeAsync(select.bind(pk)));
    }
    for (int pk = 0; pk < rows; pk++) {
      same(running.get(pk).toCompletableFuture().get().one().getInt(0), pk * 3, "row " + pk);
    }
    same(session.execute("SELECT count(*) FROM busy").one().getLong(0), (long) rows, "count");
  }

  private void tracing() {
    SimpleStatement traced = SimpleStatement.newInstance("SELECT * FROM busy WHERE pk = 1").setTracing(true);
    QueryTrace trace = session.execute(traced).getExecutionInfo().getQueryTrace();
    same(trace.getEvents().isEmpty(), false, "no events");
  }

  private void counters() {
    session.execute("CREATE TABLE counted (pk int PRIMARY KEY, n counter)");
    PreparedStatement add = session.prepare("UPDATE counted SET n = n + ? WHERE pk = ?");
    for (int i = 1; i <= 10; i++) {
      session.execute(add.bind((long) i, 1));
    }
    BatchStatementBuilder batch = BatchStatement.builder(DefaultBatchType.COUNTER);
    batch.addStatement(add.bind(-5L, 1));
    batch.addStatement(add.bind(7L, 2));
    session.execute(batch.build());
    same(session.execute("SELECT n FROM counted WHERE pk = 1").one().getLong(0), 50L, "counter");
    same(session.execute("SELECT n FROM counted WHERE pk = 2").one().getLong(0), 7L, "counter in a batch");
  }

  /** Puts a question to the test that runs this program. */
  String ask(String question) throws IOException {
    System.out.println(question);
    System.out.flush();
    return input.readLine();
  }

  /** What an application sees when its only node goes away for a moment. */
  private void restart() throws Exception {
    session.execute("CREATE TABLE kept (pk int PRIMARY KEY, v int)");
    PreparedStatement insert = session.prepare("INSERT INTO kept (pk, v) VALUES (?, ?)");
    PreparedStatement select = session.prepare("SELECT v FROM kept WHERE pk = ?");
    for (int pk = 0; pk < 50; pk++) {
      session.execute(insert.bind(pk, pk * 7));
    }
    if (!"done".equals(ask("restart?"))) {
      System.out.println("not run: restart (the node is not ours)");
      return;
    }
    long end = System.nanoTime() + RESTART_TAKES.toNanos();
    while (true) {
      try {
        session.execute(select.bind(0));
        break;
      } catch (RuntimeException error) {
        if (System.nanoTime() > end) {
          throw error;
        }
        Thread.sleep(100);
      }
    }
    for (int pk = 0; pk < 50; pk++) {
      same(session.execute(select.bind(pk)).one().getInt(0), pk * 7, "row " + pk);
    }
    session.execute(insert.bind(100, 1));
    awaitControlConnection(end);
    session.execute("ALTER TABLE kept ADD more int");
    same(session.execute("SELECT count(*) FROM kept").one().getLong(0), 51L, "count");
  }

  /**
   * Waits until the driver's control connection is back.
   *
   * <p>Requests continue as soon as one connection of the pool is back; the control connection comes back by itself, some time later. A change of the schema ends,
   * for its caller, when the driver has read the schema again over that connection. Where there is none yet, both drivers log "Control channel not available,
   * aborting schema refresh" and never complete what waits for the reading, however soon the node has answered: the caller runs into its timeout. So a
   * program that changes a schema right after a restart first asks the driver something that needs the control connection and fails at once without it.
   */
  private void awaitControlConnection(long end) throws Exception {
    while (!session.checkSchemaAgreement()) {
      same(System.nanoTime() < end, true, "the control connection is back");
      Thread.sleep(100);
    }
  }
}

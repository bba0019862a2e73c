import com.datastax.driver.core.BatchStatement;
import com.datastax.driver.core.Cluster;
import com.datastax.driver.core.DataType;
import com.datastax.driver.core.PagingState;
import com.datastax.driver.core.PreparedStatement;
import com.datastax.driver.core.ProtocolOptions;
import com.datastax.driver.core.ProtocolVersion;
import com.datastax.driver.core.QueryOptions;
import com.datastax.driver.core.QueryTrace;
import com.datastax.driver.core.ResultSet;
import com.datastax.driver.core.ResultSetFuture;
import com.datastax.driver.core.Row;
import com.datastax.driver.core.Session;
import com.datastax.driver.core.SimpleStatement;
import com.datastax.driver.core.TokenRange;
import com.datastax.driver.core.exceptions.InvalidQueryException;
import com.datastax.driver.core.policies.ConstantSpeculativeExecutionPolicy;
import com.datastax.driver.core.policies.DCAwareRoundRobinPolicy;
import com.datastax.driver.core.policies.NoSpeculativeExecutionPolicy;
import com.datastax.driver.core.policies.TokenAwarePolicy;
import com.datastax.driver.core.querybuilder.QueryBuilder;
import com.datastax.driver.core.schemabuilder.SchemaBuilder;
import com.datastax.driver.mapping.Mapper;
import com.datastax.driver.mapping.MappingManager;
import com.datastax.driver.mapping.annotations.Accessor;
import com.datastax.driver.mapping.annotations.Frozen;
import com.datastax.driver.mapping.annotations.Param;
import com.datastax.driver.mapping.annotations.PartitionKey;
import com.datastax.driver.mapping.annotations.Query;
import com.datastax.driver.mapping.annotations.Table;
import com.datastax.driver.mapping.annotations.UDT;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * A Java application on driver 3, which many have not left yet, checked against a running node.
 *
 * <p>{@code java Client3 HOST [--protocol V3] [--compression LZ4] [--check NAME]} prints {@code ok NAME} or {@code FAILED NAME: why} for each check and ends with
 * status 1 if one failed. {@code --check} runs only that check. It prints {@code refusals?} and reads a line: the numbers of reads and writes that the nodes have
 * refused by rate limits, or {@code no} if the caller does not know them.
 */
public final class Client3 {
  private static final String KEYSPACE = "java3_client";
  private static final int ROWS = 500;

  private interface Check {
    void run() throws Exception;
  }

  /** A user-defined type as an object. */
  @UDT(keyspace = KEYSPACE, name = "address")
  public static final class Address {
    private String street;
    private int number;

    public String getStreet() {
      return street;
    }

    public void setStreet(String street) {
      this.street = street;
    }

    public int getNumber() {
      return number;
    }

    public void setNumber(int number) {
      this.number = number;
    }
  }

  /** A row as an object. */
  @Table(keyspace = KEYSPACE, name = "people")
  public static final class Person {
    @PartitionKey private int id;
    private String name;
    @Frozen private Address home;
    private Set<String> tags;

    public int getId() {
      return id;
    }

    public void setId(int id) {
      this.id = id;
    }

    public String getName() {
      return name;
    }

    public void setName(String name) {
      this.name = name;
    }

    public Address getHome() {
      return home;
    }

    public void setHome(Address home) {
      this.home = home;
    }

    public Set<String> getTags() {
      return tags;
    }

    public void setTags(Set<String> tags) {
      this.tags = tags;
    }
  }

  /** Statements of the application's own behind an interface. */
  @Accessor
  public interface People {
    @Query("SELECT * FROM " + KEYSPACE + ".people WHERE id = :id")
    Person one(@Param("id") int id);
  }

  private final String[] arguments;
  private final Cluster cluster;
  private final Session session;
  private String only;
  private int failed;

  private Client3(String[] arguments, Cluster cluster) {
    this.arguments = arguments;
    this.cluster = cluster;
    this.session = cluster.connect();
    for (int i = 1; i + 1 < arguments.length; i += 2) {
      only = arguments[i].equals("--check") ? arguments[i + 1] : only;
    }
  }

  private static Cluster.Builder builder(String[] arguments) {
    Cluster.Builder builder =
        Cluster.builder()
            .addContactPoint(arguments[0])
            .withQueryOptions(new QueryOptions().setFetchSize(50))
            .withLoadBalancingPolicy(new TokenAwarePolicy(DCAwareRoundRobinPolicy.builder().withLocalDc("datacenter1").build()))
            .withSpeculativeExecutionPolicy(new ConstantSpeculativeExecutionPolicy(5, 2))
            .withoutJMXReporting();
    for (int i = 1; i + 1 < arguments.length; i += 2) {
      switch (arguments[i]) {
        case "--protocol" -> builder.withProtocolVersion(ProtocolVersion.valueOf(arguments[i + 1]));
        case "--compression" -> builder.withCompression(ProtocolOptions.Compression.valueOf(arguments[i + 1]));
        case "--check" -> {}
        default -> throw new IllegalArgumentException(arguments[i]);
      }
    }
    return builder;
  }

  public static void main(String[] arguments) {
    if (arguments.length < 1) {
      System.err.println("usage: Client3 HOST [--protocol V3] [--compression LZ4] [--check NAME]");
      System.exit(2);
    }
    int failed = 1;
    try (Cluster cluster = builder(arguments).build()) {
      Client3 client = new Client3(arguments, cluster);
      client.run();
      failed = client.failed;
    } catch (RuntimeException error) {
      System.out.println("FAILED connect: " + error);
    }
    System.out.flush();
    System.exit(failed == 0 ? 0 : 1);
  }

  private void run() {
    System.out.println("driver " + cluster.getConfiguration().getProtocolOptions().getProtocolVersion());
    session.execute("DROP KEYSPACE IF EXISTS " + KEYSPACE);
    session.execute("CREATE KEYSPACE " + KEYSPACE + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}");
    session.execute("USE " + KEYSPACE);
    session.execute("CREATE TYPE address (street text, number int)");
    session.execute("CREATE TABLE people (id int PRIMARY KEY, name text, home frozen<address>, tags set<text>)");
    check("mapping", this::mapping);
    check("paging", this::paging);
    check("ranges", this::ranges);
    check("batches", this::batches);
    check("builders", this::builders);
    check("metadata", this::metadata);
    check("errors", this::errors);
    check("rate_limits", this::rateLimits);
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
      throw new AssertionError(what + ": got " + got + ", expected " + wanted);
    }
  }

  private void mapping() {
    MappingManager manager = new MappingManager(session);
    Mapper<Person> mapper = manager.mapper(Person.class);
    Person person = new Person();
    person.setId(-1);
    person.setName("Ada");
    person.setTags(new HashSet<>(List.of("x", "y")));
    person.setHome(new Address());
    person.getHome().setStreet("Main");
    person.getHome().setNumber(5);
    mapper.save(person, Mapper.Option.ttl(5000), Mapper.Option.timestamp(1234567));
    for (Person seen : List.of(mapper.get(-1), manager.createAccessor(People.class).one(-1))) {
      same(seen.getName() + seen.getHome().getStreet() + seen.getHome().getNumber() + seen.getTags().size(), "AdaMain52", "object");
    }
    mapper.delete(person);
    same(mapper.get(-1) == null, true, "deleted");
  }

  private void paging() {
    PreparedStatement insert = session.prepare("INSERT INTO people (id, name) VALUES (?, ?)");
    List<ResultSetFuture> running = new ArrayList<>();
    for (int id = 0; id < ROWS; id++) {
      running.add(session.executeAsync(insert.bind(id, "name " + id)));
    }
    running.forEach(ResultSetFuture::getUninterruptibly);
    int rows = 0;
    for (Row row : session.execute("SELECT id, name FROM people")) {
      same(row.getString("name"), "name " + row.getInt("id"), "row");
      rows++;
    }
    same(rows, ROWS, "rows over pages");
    ResultSet first = session.execute(new SimpleStatement("SELECT id FROM people").setFetchSize(100));
    String state = first.getExecutionInfo().getPagingState().toString();
    SimpleStatement onward = new SimpleStatement("SELECT id FROM people");
    onward.setFetchSize(100).setPagingState(PagingState.fromString(state));
    same(session.execute(onward).all().size(), ROWS - 100, "rows from a state on");
  }

  private void ranges() {
    PreparedStatement scan = session.prepare("SELECT id FROM people WHERE token(id) > ? AND token(id) <= ?");
    int rows = 0;
    for (TokenRange range : cluster.getMetadata().getTokenRanges()) {
      for (TokenRange part : range.unwrap()) {
        rows += session.execute(scan.bind().setToken(0, part.getStart()).setToken(1, part.getEnd())).all().size();
      }
    }
    same(rows, ROWS, "rows by the ranges of the ring");
  }

  private void batches() {
    PreparedStatement insert = session.prepare("INSERT INTO people (id, name) VALUES (?, ?)");
    BatchStatement batch = new BatchStatement();
    batch.add(insert.bind(1000, "b"));
    batch.add(new SimpleStatement("INSERT INTO people (id, name) VALUES (?, ?)", 1001, "c"));
    session.execute(batch);
    same(session.execute(QueryBuilder.select().all().from("people").where(QueryBuilder.in("id", 1000, 1001))).all().size(), 2, "rows of a batch");
    QueryTrace trace = session.execute(new SimpleStatement("SELECT * FROM people WHERE id = 1").enableTracing()).getExecutionInfo().getQueryTrace();
    same(trace.getEvents().isEmpty(), false, "a trace without events");
  }

  private void builders() {
    session.execute(SchemaBuilder.createTable("built").addPartitionKey("pk", DataType.cint()).addClusteringColumn("ck", DataType.timeuuid())
        .addColumn("v", DataType.list(DataType.text())).withOptions().clusteringOrder("ck", SchemaBuilder.Direction.DESC)
        .compactionOptions(SchemaBuilder.leveledStrategy()).compressionOptions(SchemaBuilder.lz4()).comment("built").gcGraceSeconds(5).getQueryString());
    session.execute(QueryBuilder.insertInto("built").value("pk", 1).value("ck", QueryBuilder.now()).value("v", List.of("a")).using(QueryBuilder.ttl(1000)));
    session.execute(QueryBuilder.update("people").with(QueryBuilder.set("name", "new")).and(QueryBuilder.add("tags", "t")).where(QueryBuilder.eq("id", 1)));
    Row row = session.execute(QueryBuilder.select("name", "tags").from("people").where(QueryBuilder.eq("id", 1))).one();
    same(row.getString(0) + row.getSet(1, String.class), "new[t]", "updated");
    same(session.execute(QueryBuilder.select().countAll().from("built")).one().getLong(0), 1L, "count");
  }

  private void metadata() {
    session.execute("ALTER TABLE people ADD more int");
    same(cluster.getMetadata().getKeyspace(KEYSPACE).getTable("people").getColumn("more") != null, true, "the new column");
    same(cluster.getMetadata().checkSchemaAgreement(), true, "schema agreement");
    for (String keyspace : new String[] {KEYSPACE, "system", "system_schema"}) {
      same(cluster.getMetadata().getKeyspace(keyspace).exportAsString().contains("CREATE TABLE"), true, "export of " + keyspace);
    }
  }

  private void rateLimits() throws Exception {
    // A speculative execution would send a request twice.
    Cluster.Builder builder = builder(arguments).withSpeculativeExecutionPolicy(NoSpeculativeExecutionPolicy.INSTANCE);
    try (Cluster own = builder.build()) {
      new Refusals3(own.connect(KEYSPACE), KEYSPACE).rateLimits();
    }
  }

  private void errors() {
    try {
      session.execute("SELECT nothing FROM people");
    } catch (InvalidQueryException expected) {
      return;
    }
    throw new AssertionError("not refused");
  }
}

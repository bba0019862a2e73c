import com.datastax.oss.driver.api.core.CqlIdentifier;
import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.cql.BatchStatement;
import com.datastax.oss.driver.api.core.cql.DefaultBatchType;
import com.datastax.oss.driver.api.core.cql.SimpleStatement;
import com.datastax.oss.driver.api.core.cql.Statement;
import com.datastax.oss.driver.api.core.metadata.schema.TableMetadata;
import com.datastax.oss.driver.api.core.servererrors.InvalidConfigurationInQueryException;
import java.util.Arrays;
import java.util.List;

/** Refusals by per-partition rate limits: each reaches the application as one error, and the driver does not send the request again. */
final class Refusals {
  private static final String[] KINDS = {"read", "write"};
  private static final String[] STATEMENTS = {"SELECT v FROM %s WHERE pk = %s", "INSERT INTO %s (pk, v) VALUES (%s, 1)"};
  private static final int MOST_UNTIL_REFUSED = 1000;

  private final CqlSession session;
  private final String keyspace;
  private final Client client;
  private final long[] seen = new long[2];

  Refusals(CqlSession session, String keyspace, Client client) {
    this.session = session;
    this.keyspace = keyspace;
    this.client = client;
  }

  void rateLimits() throws Exception {
    for (int limit = 0; limit < 2; limit++) {
      session.execute("CREATE TABLE " + (limit == 0 ? "refusing" : "limited") + " (pk int PRIMARY KEY, v int) WITH per_partition_rate_limit = "
          + "{'max_reads_per_second': " + limit + ", 'max_writes_per_second': " + limit + "}");
    }
    String answer = client.ask("refusals?");
    if (answer.equals("no")) {
      System.out.println("not run: rate_limits (the node is not ours)");
      return;
    }
    System.arraycopy(counts(answer), 0, seen, 0, 2);
    for (int kind = 0; kind < 2; kind++) {
      for (boolean idempotent : new boolean[] {false, true}) {
        refused(SimpleStatement.newInstance(String.format(STATEMENTS[kind], "refusing", 1)).setIdempotent(idempotent), kind);
        refused(session.prepare(String.format(STATEMENTS[kind], "refusing", "?")).bind(1).setIdempotent(idempotent), kind);
      }
    }
    SimpleStatement insert = SimpleStatement.newInstance(String.format(STATEMENTS[1], "refusing", 2));
    refused(BatchStatement.newInstance(DefaultBatchType.UNLOGGED, insert).setIdempotent(true), 1);
    for (int kind = 0; kind < 2; kind++) {
      untilRefused(kind);
    }
    description();
  }

  private static long[] counts(String answer) {
    return Arrays.stream(answer.split(" ")).mapToLong(Long::parseLong).toArray();
  }

  /** A request to the table that refuses everything is sent once. */
  private void refused(Statement<?> statement, int kind) throws Exception {
    try {
      session.execute(statement);
    } catch (RuntimeException error) {
      isRefusal(error, kind, "refusing", 0);
      sentOnce(kind, "idempotent: " + statement.isIdempotent() + ", " + statement.getClass().getSimpleName());
      return;
    }
    throw new AssertionError("not refused: " + KINDS[kind]);
  }

  private void sentOnce(int kind, String what) throws Exception {
    seen[kind]++;
    Client.same(Arrays.toString(counts(client.ask("refusals?"))), Arrays.toString(seen), KINDS[kind] + ", " + what + ": refusals of the nodes");
  }

  private void isRefusal(RuntimeException error, int kind, String table, int limit) {
    Client.same(error.getClass(), InvalidConfigurationInQueryException.class, error.toString());
    String reached = "Per-partition rate limit reached for " + KINDS[kind] + " in table " + keyspace + "." + table + ", rejected by ";
    Client.same(error.getMessage().contains(reached) && error.getMessage().contains("limit " + limit + ";"), true, error.getMessage());
  }

  /** One partition reaches its limit. Another one, on the same connections, does not. */
  private void untilRefused(int kind) throws Exception {
    for (int n = 0; n < MOST_UNTIL_REFUSED; n++) {
      try {
        session.execute(String.format(STATEMENTS[kind], "limited", 1));
      } catch (RuntimeException error) {
        isRefusal(error, kind, "limited", 1);
        session.execute(String.format(STATEMENTS[kind], "limited", 2));
        sentOnce(kind, "until refused");
        return;
      }
    }
    throw new AssertionError("not refused: " + KINDS[kind] + " of a table with a limit of 1");
  }

  /** What the driver describes makes the table again, with its limits. */
  private void description() {
    session.execute("CREATE TABLE described_limits (pk int PRIMARY KEY) WITH per_partition_rate_limit = {'max_read_kb_per_second': 3, 'mode': 'observe'}");
    TableMetadata table = session.getMetadata().getKeyspace(keyspace).flatMap(known -> known.getTable("described_limits")).get();
    List<String> before = described();
    Client.same(before.toString().contains("per_partition_rate_limit = {'max_read_kb_per_second': '3', 'mode': 'observe'}"), true, before.toString());
    Client.same(table.getOptions().get(CqlIdentifier.fromInternal("extensions")) != null, true, "extensions");
    session.execute("DROP TABLE described_limits");
    session.execute(table.describe(false));
    Client.same(described(), before, table.describe(false));
  }

  private List<String> described() {
    return session.execute("DESCRIBE TABLE described_limits").map(row -> row.getString("create_statement")).all();
  }
}

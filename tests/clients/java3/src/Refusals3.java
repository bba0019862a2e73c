import com.datastax.driver.core.BatchStatement;
import com.datastax.driver.core.Session;
import com.datastax.driver.core.SimpleStatement;
import com.datastax.driver.core.Statement;
import com.datastax.driver.core.exceptions.InvalidConfigurationInQueryException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.Arrays;

/** Refusals by per-partition rate limits: each reaches the application as one error, and the driver does not send the request again. */
final class Refusals3 {
  private static final String[] KINDS = {"read", "write"};
  private static final String[] STATEMENTS = {"SELECT v FROM %s WHERE pk = %s", "INSERT INTO %s (pk, v) VALUES (%s, 1)"};
  private static final int MOST_UNTIL_REFUSED = 1000;

  private final Session session;
  private final String keyspace;
  private final BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
  private final long[] seen = new long[2];

  Refusals3(Session session, String keyspace) {
    this.session = session;
    this.keyspace = keyspace;
  }

  void rateLimits() throws Exception {
    for (int limit = 0; limit < 2; limit++) {
      session.execute("CREATE TABLE " + (limit == 0 ? "refusing" : "limited") + " (pk int PRIMARY KEY, v int) WITH per_partition_rate_limit = "
          + "{'max_reads_per_second': " + limit + ", 'max_writes_per_second': " + limit + "}");
    }
    String answer = ask("refusals?");
    if (answer.equals("no")) {
      System.out.println("not run: rate_limits (the node is not ours)");
      return;
    }
    System.arraycopy(counts(answer), 0, seen, 0, 2);
    for (int kind = 0; kind < 2; kind++) {
      for (boolean idempotent : new boolean[] {false, true}) {
        refused(new SimpleStatement(String.format(STATEMENTS[kind], "refusing", 1)).setIdempotent(idempotent), kind);
        refused(session.prepare(String.format(STATEMENTS[kind], "refusing", "?")).bind(1).setIdempotent(idempotent), kind);
      }
    }
    BatchStatement batch = new BatchStatement(BatchStatement.Type.UNLOGGED);
    refused(batch.add(new SimpleStatement(String.format(STATEMENTS[1], "refusing", 2))).setIdempotent(true), 1);
    for (int kind = 0; kind < 2; kind++) {
      untilRefused(kind);
    }
  }

  /** Puts a question to the test that runs this program. */
  private String ask(String question) throws IOException {
    System.out.println(question);
    System.out.flush();
    return input.readLine();
  }

  private static long[] counts(String answer) {
    return Arrays.stream(answer.split(" ")).mapToLong(Long::parseLong).toArray();
  }

  /** A request to the table that refuses everything is sent once. */
  private void refused(Statement statement, int kind) throws Exception {
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
    Client3.same(Arrays.toString(counts(ask("refusals?"))), Arrays.toString(seen), KINDS[kind] + ", " + what + ": refusals of the nodes");
  }

  private void isRefusal(RuntimeException error, int kind, String table, int limit) {
    Client3.same(error.getClass(), InvalidConfigurationInQueryException.class, error.toString());
    String reached = "Per-partition rate limit reached for " + KINDS[kind] + " in table " + keyspace + "." + table + ", rejected by ";
    Client3.same(error.getMessage().contains(reached) && error.getMessage().contains("limit " + limit + ";"), true, error.getMessage());
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
}

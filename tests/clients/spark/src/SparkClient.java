import static com.datastax.spark.connector.japi.CassandraJavaUtil.javaFunctions;
import static com.datastax.spark.connector.japi.CassandraJavaUtil.mapRowTo;
import static com.datastax.spark.connector.japi.CassandraJavaUtil.mapToRow;
import static com.datastax.spark.connector.japi.CassandraJavaUtil.someColumns;
import static org.apache.spark.sql.functions.avg;
import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.count;
import static org.apache.spark.sql.functions.lit;

import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.spark.connector.cql.CassandraConnector;
import com.datastax.spark.connector.japi.CassandraRow;
import com.datastax.spark.connector.japi.rdd.CassandraTableScanJavaRDD;
import com.datastax.spark.connector.writer.WriteConf;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.SparkSession;

/**
 * A Spark job on the Cassandra connector, local mode: reads a table by token ranges, counts, has filters done by the node, writes back, joins by key, makes a
 * table through the catalog.
 *
 * <p>{@code java SparkClient HOST} prints {@code ok NAME} or {@code FAILED NAME: why} for each check and ends with status 1 if one failed.
 */
public final class SparkClient {
  private static final String KEYSPACE = "spark_client";
  private static final int SENSORS = 97;
  private static final int ROWS = 5000;

  private interface Check {
    void run() throws Exception;
  }

  /** A row of the table, as the connector's mapper sees it. */
  public static final class Reading implements Serializable {
    private int sensor;
    private int at;
    private double value;
    private String place;

    public Reading() {}

    public Reading(int sensor, int at, double value, String place) {
      this.sensor = sensor;
      this.at = at;
      this.value = value;
      this.place = place;
    }

    public int getSensor() {
      return sensor;
    }

    public void setSensor(int sensor) {
      this.sensor = sensor;
    }

    public int getAt() {
      return at;
    }

    public void setAt(int at) {
      this.at = at;
    }

    public double getValue() {
      return value;
    }

    public void setValue(double value) {
      this.value = value;
    }

    public String getPlace() {
      return place;
    }

    public void setPlace(String place) {
      this.place = place;
    }
  }

  /** The key of a partition, for joins. */
  public static final class Key implements Serializable {
    private int sensor;

    public Key() {}

    public Key(int sensor) {
      this.sensor = sensor;
    }

    public int getSensor() {
      return sensor;
    }

    public void setSensor(int sensor) {
      this.sensor = sensor;
    }
  }

  private final SparkSession spark;
  private final JavaSparkContext context;
  private int failed;

  private SparkClient(String host) {
    SparkConf conf = new SparkConf()
        .setMaster("local[2]")
        .setAppName("spark_client")
        .set("spark.ui.enabled", "false")
        .set("spark.driver.host", host)
        .set("spark.driver.bindAddress", host)
        .set("spark.sql.shuffle.partitions", "4")
        .set("spark.cassandra.connection.host", host)
        .set("spark.cassandra.connection.localDC", "datacenter1")
        // Small splits, so that there are several token ranges to read.
        .set("spark.cassandra.input.split.sizeInMB", "1")
        .set("spark.cassandra.input.fetch.sizeInRows", "100")
        .set("spark.sql.extensions", "com.datastax.spark.connector.CassandraSparkExtensions")
        .set("spark.sql.catalog.node", "com.datastax.spark.connector.datasource.CassandraCatalog");
    spark = SparkSession.builder().config(conf).getOrCreate();
    context = new JavaSparkContext(spark.sparkContext());
  }

  public static void main(String[] arguments) {
    if (arguments.length != 1) {
      System.err.println("usage: SparkClient HOST");
      System.exit(2);
    }
    SparkClient client = new SparkClient(arguments[0]);
    try {
      client.run();
    } catch (Exception error) {
      System.out.println("FAILED setup: " + error);
      client.failed++;
    }
    System.out.flush();
    client.spark.stop();
    System.exit(client.failed == 0 ? 0 : 1);
  }

  private void run() {
    try (CqlSession session = CassandraConnector.apply(context.getConf()).openSession()) {
      session.execute("DROP KEYSPACE IF EXISTS " + KEYSPACE);
      session.execute("CREATE KEYSPACE " + KEYSPACE + " WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}");
      session.execute("CREATE TABLE " + KEYSPACE + ".readings (sensor int, at int, value double, place text, PRIMARY KEY (sensor, at))");
      session.execute("CREATE TABLE " + KEYSPACE + ".totals (sensor int PRIMARY KEY, readings bigint, mean double)");
      session.execute("CREATE TYPE " + KEYSPACE + ".point (x int, y text)");
      session.execute("CREATE TABLE " + KEYSPACE + ".mixed (pk int PRIMARY KEY, tags set<text>, list list<int>, numbers map<text, int>, place frozen<point>, pair tuple<int, text>,"
          + " day date, at timestamp, id uuid, amount decimal, big varint, bytes blob, flag boolean, host inet, small smallint, tiny tinyint, ratio float)");
      session.execute("INSERT INTO " + KEYSPACE + ".mixed (pk, tags, list, numbers, place, pair, day, at, id, amount, big, bytes, flag, host, small, tiny, ratio) VALUES (1, {'b', 'a'}, [3, 1],"
          + " {'k': 1}, {x: 1, y: 'z'}, (5, 'five'), '2024-02-29', '2024-02-29 12:30:01.123+0000', 123e4567-e89b-42d3-a456-426614174000, 12.5, 12345678901234567890, 0xcafe, true,"
          + " '127.0.0.1', 7, -7, 1.5)");
      session.execute("CREATE TABLE " + KEYSPACE + ".counted (pk int PRIMARY KEY, n counter)");
    }
    check("write", this::write);
    check("read_by_ranges", this::readByRanges);
    check("filters", this::filters);
    check("frames", this::frames);
    check("types", this::types);
    check("joins", this::joins);
    check("catalog", this::catalog);
    check("counters", this::counters);
  }

  private void check(String name, Check check) {
    try {
      check.run();
      System.out.println("ok " + name);
    } catch (Exception | AssertionError error) {
      System.out.println("FAILED " + name + ": " + String.valueOf(error).replace('\n', ' '));
      failed++;
    }
  }

  private static void same(Object got, Object wanted, String what) {
    if (!wanted.equals(got)) {
      throw new AssertionError(what + ": got " + got + ", expected " + wanted);
    }
  }

  private Dataset<Row> frame(String table) {
    return spark.read().format("org.apache.spark.sql.cassandra").options(Map.of("keyspace", KEYSPACE, "table", table)).load();
  }

  private CassandraTableScanJavaRDD<CassandraRow> scan(String table) {
    return javaFunctions(context).cassandraTable(KEYSPACE, table);
  }

  private static long rowsOf(int sensor) {
    return (ROWS - 1 - sensor) / SENSORS + 1L;
  }

  private void write() {
    List<Reading> all = new ArrayList<>();
    for (int n = 0; n < ROWS; n++) {
      all.add(new Reading(n % SENSORS, n, n * 0.5, "place " + n % 3));
    }
    javaFunctions(context.parallelize(all, 4)).writerBuilder(KEYSPACE, "readings", mapToRow(Reading.class)).saveToCassandra();
    same(scan("readings").cassandraCount(), (long) ROWS, "count by the node");
  }

  private void readByRanges() {
    CassandraTableScanJavaRDD<CassandraRow> rows = scan("readings");
    same(rows.partitions().isEmpty(), false, "no split");
    JavaRDD<Integer> at = rows.select("at").map(row -> row.getInt("at"));
    same(at.count(), (long) ROWS, "rows");
    same(at.distinct().count(), (long) ROWS, "different rows");
    JavaRDD<Reading> mapped = javaFunctions(context).cassandraTable(KEYSPACE, "readings", mapRowTo(Reading.class));
    same(mapped.filter(one -> one.getValue() == one.getAt() * 0.5 && one.getPlace().equals("place " + one.getAt() % 3)).count(), (long) ROWS, "rows as objects");
    Map<Integer, Long> bySensor = rows.spanBy(row -> row.getInt("sensor"), Integer.class).mapToPair(one -> {
      long n = 0;
      for (CassandraRow ignored : one._2()) {
        n++;
      }
      return new scala.Tuple2<>(one._1(), n);
    }).collectAsMap();
    same(bySensor.size(), SENSORS, "partitions");
    same(bySensor.values().stream().mapToLong(Long::longValue).sum(), (long) ROWS, "rows of partitions");
  }

  /** What the connector sends as a restriction: the plan says that the node does it, the rows that it does it right. */
  private void filters() {
    Dataset<Row> one = frame("readings").filter(col("sensor").equalTo(5).and(col("at").gt(1000)));
    String plan = one.queryExecution().executedPlan().toString();
    same(plan.contains("\"sensor\" = ?, 5") && plan.contains("\"at\" > ?, 1000"), true, "not pushed down: " + plan);
    long wanted = 0;
    for (int n = 1001; n < ROWS; n++) {
      wanted += n % SENSORS == 5 ? 1 : 0;
    }
    same(one.count(), wanted, "rows of a partition from a place on");
    same(frame("readings").filter(col("sensor").isin(1, 2, 3)).count(), rowsOf(1) + rowsOf(2) + rowsOf(3), "rows of three partitions");
    same(scan("readings").where("sensor = ? AND at >= ? AND at < ?", 7, 100, 400).count(), 4L, "rows by a restriction in text");
    same(scan("readings").where("value > ?", 2000.0).count(), 0L + ROWS - 4001, "rows filtered by the node");
    same(scan("readings").limit(3L).collect().size() >= 3, true, "limited");
    same(frame("readings").filter("place = 'place 1' AND value < 10").count(), 7L, "rows filtered by Spark");
    long written = spark.sql("SELECT writetime(value) AS written FROM node." + KEYSPACE + ".readings WHERE sensor = 5").first().getLong(0);
    same(written > 0, true, "time of writing");
  }

  private void frames() {
    Dataset<Row> totals = frame("readings").groupBy("sensor").agg(count("at").as("readings"), avg("value").as("mean"));
    totals.write().format("org.apache.spark.sql.cassandra").options(Map.of("keyspace", KEYSPACE, "table", "totals")).mode(SaveMode.Append).save();
    same(frame("totals").count(), (long) SENSORS, "rows written");
    same(frame("totals").agg(Map.of("readings", "sum")).first().getLong(0), (long) ROWS, "sum of what was written");
    Map<String, String> options = Map.of("keyspace", KEYSPACE, "table", "totals", "confirm.truncate", "true", "spark.cassandra.output.ttl", "10000");
    totals.filter("sensor < 10").write().format("org.apache.spark.sql.cassandra").options(options).mode(SaveMode.Overwrite).save();
    same(frame("totals").count(), 10L, "rows written over");
  }

  private void types() {
    Row row = frame("mixed").first();
    same(row.getList(row.fieldIndex("list")), List.of(3, 1), "list");
    same(row.<String>getList(row.fieldIndex("tags")).stream().sorted().collect(Collectors.toList()), List.of("a", "b"), "set");
    same(row.<String, Integer>getJavaMap(row.fieldIndex("numbers")), Map.of("k", 1), "map");
    same(row.getStruct(row.fieldIndex("place")).toString() + row.getStruct(row.fieldIndex("pair")), "[1,z][5,five]", "user-defined type and tuple");
    same(row.getAs("day").toString() + row.getAs("id") + row.getAs("host"), "2024-02-29123e4567-e89b-42d3-a456-426614174000127.0.0.1", "as text");
    Dataset<Row> copy = frame("mixed").filter(col("pk").equalTo(1)).withColumn("pk", lit(2));
    copy.write().format("org.apache.spark.sql.cassandra").options(Map.of("keyspace", KEYSPACE, "table", "mixed")).mode(SaveMode.Append).save();
    same(frame("mixed").count(), 2L, "rows");
    List<Row> both = frame("mixed").orderBy("pk").drop("pk", "bytes").collectAsList();
    same(both.get(1).toString(), both.get(0).toString(), "a row read and written");
  }

  private void joins() {
    List<Key> keys = List.of(new Key(1), new Key(50), new Key(1000));
    long rows = javaFunctions(context.parallelize(keys)).joinWithCassandraTable(KEYSPACE, "readings", someColumns("at", "value"),
        someColumns("sensor"), mapRowTo(Reading.class), mapToRow(Key.class)).count();
    long wanted = rowsOf(1) + rowsOf(50);
    same(rows, wanted, "rows joined by key");
    javaFunctions(context.parallelize(keys)).deleteFromCassandra(KEYSPACE, "readings", mapToRow(Key.class), someColumns(),
        someColumns("sensor"), WriteConf.fromSparkConf(context.getConf()), CassandraConnector.apply(context.getConf()));
    same(scan("readings").cassandraCount(), ROWS - wanted, "rows left after deleting partitions");
  }

  private void catalog() {
    String table = "node." + KEYSPACE + ".made";
    spark.sql("CREATE TABLE " + table + " (pk INT, ck INT, v STRING) USING cassandra PARTITIONED BY (pk) TBLPROPERTIES (clustering_key='ck.desc', compaction='{class=LeveledCompactionStrategy}')");
    spark.sql("INSERT INTO " + table + " SELECT * FROM VALUES (1, 1, 'one'), (1, 2, 'two'), (2, 1, 'three') AS made(pk, ck, v)");
    same(spark.sql("SELECT v FROM " + table + " WHERE pk = 1 ORDER BY ck").collectAsList().toString(), "[[one], [two]]", "selected");
    same(spark.sql("SHOW TABLES FROM node." + KEYSPACE).filter("tableName = 'made'").count(), 1L, "listed");
    same(spark.sql("SELECT count(*) FROM node." + KEYSPACE + ".readings r JOIN " + table + " m ON r.sensor = m.pk").first().getLong(0) > 0, true, "joined");
    spark.sql("ALTER TABLE " + table + " ADD COLUMN w INT");
    same(List.of(spark.table(table).columns()).contains("w"), true, "the new column");
    spark.sql("DROP TABLE " + table);
    same(spark.sql("SHOW TABLES FROM node." + KEYSPACE).filter("tableName = 'made'").count(), 0L, "dropped");
  }

  private void counters() {
    for (int n = 0; n < 2; n++) {
      spark.sql("SELECT 1 AS pk, CAST(5 AS BIGINT) AS n").write().format("org.apache.spark.sql.cassandra").options(Map.of("keyspace", KEYSPACE, "table", "counted")).mode(SaveMode.Append).save();
    }
    same(frame("counted").first().getLong(1), 10L, "counter");
  }
}

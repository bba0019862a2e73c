import static com.datastax.oss.driver.api.querybuilder.QueryBuilder.bindMarker;
import static com.datastax.oss.driver.api.querybuilder.QueryBuilder.deleteFrom;
import static com.datastax.oss.driver.api.querybuilder.QueryBuilder.insertInto;
import static com.datastax.oss.driver.api.querybuilder.QueryBuilder.literal;
import static com.datastax.oss.driver.api.querybuilder.QueryBuilder.now;
import static com.datastax.oss.driver.api.querybuilder.QueryBuilder.raw;
import static com.datastax.oss.driver.api.querybuilder.QueryBuilder.selectFrom;
import static com.datastax.oss.driver.api.querybuilder.QueryBuilder.truncate;
import static com.datastax.oss.driver.api.querybuilder.QueryBuilder.tuple;
import static com.datastax.oss.driver.api.querybuilder.QueryBuilder.update;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.RowsPerPartition.rows;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.alterTable;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.alterType;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.createKeyspace;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.createTable;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.createType;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.dropKeyspace;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.dropTable;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.dropType;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.leveledCompactionStrategy;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.sizeTieredCompactionStrategy;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.timeWindowCompactionStrategy;
import static com.datastax.oss.driver.api.querybuilder.SchemaBuilder.udt;

import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.cql.Row;
import com.datastax.oss.driver.api.core.metadata.schema.ClusteringOrder;
import com.datastax.oss.driver.api.core.type.DataTypes;
import com.datastax.oss.driver.api.querybuilder.relation.Relation;
import com.datastax.oss.driver.api.querybuilder.schema.compaction.TimeWindowCompactionStrategy.CompactionWindowUnit;
import com.datastax.oss.driver.api.querybuilder.select.Selector;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Statements as the driver's query and schema builders write them. */
final class Builder {
  private Builder() {}

  static void check(CqlSession session, String keyspace) {
    schema(session);
    data(session, keyspace);
    session.execute(truncate("built").build());
    Client.same(session.execute(selectFrom("built").countAll().build()).one().getLong(0), 0L, "after truncate");
    session.execute(dropTable("built").ifExists().build());
    session.execute(dropType("shape").ifExists().build());
  }

  private static void schema(CqlSession session) {
    session.execute(createKeyspace("java_built").ifNotExists().withNetworkTopologyStrategy(Map.of("datacenter1", 1)).withDurableWrites(true).build());
    session.execute(createKeyspace("java_built").ifNotExists().withSimpleStrategy(1).build());
    session.execute(dropKeyspace("java_built").ifExists().build());
    session.execute(createType("shape").ifNotExists().withField("sides", DataTypes.INT).withField("names", DataTypes.frozenListOf(DataTypes.TEXT)).build());
    session.execute(alterType("shape").addField("area", DataTypes.DOUBLE).build());
    session.execute(createTable("built").ifNotExists()
        .withPartitionKey("pk", DataTypes.INT)
        .withClusteringColumn("ck", DataTypes.INT)
        .withClusteringColumn("at", DataTypes.TIMEUUID)
        .withStaticColumn("shared", DataTypes.TEXT)
        .withColumn("v", DataTypes.TEXT)
        .withColumn("l", DataTypes.listOf(DataTypes.INT))
        .withColumn("s", DataTypes.setOf(DataTypes.TEXT))
        .withColumn("m", DataTypes.mapOf(DataTypes.TEXT, DataTypes.INT))
        .withColumn("shape", udt("shape", true))
        .withClusteringOrder("ck", ClusteringOrder.DESC)
        .withClusteringOrder("at", ClusteringOrder.ASC)
        .withComment("made by a builder")
        .withGcGraceSeconds(1000)
        .withDefaultTimeToLiveSeconds(100_000)
        .withBloomFilterFpChance(0.05)
        .withCompaction(leveledCompactionStrategy().withSSTableSizeInMB(64).withTombstoneThreshold(0.3))
        .withLZ4Compression(16, 1.0)
        .withCaching(true, rows(10))
        .withSpeculativeRetry("99PERCENTILE")
        .withMemtableFlushPeriodInMs(0)
        .withMinIndexInterval(128)
        .withMaxIndexInterval(2048)
        .build());
    session.execute(alterTable("built").addColumn("extra", DataTypes.BOOLEAN).addColumn("other", DataTypes.INT).build());
    session.execute(alterTable("built").dropColumn("other").build());
    session.execute(alterTable("built").withCompaction(sizeTieredCompactionStrategy().withMinThreshold(3)).build());
    session.execute(alterTable("built").withCompaction(timeWindowCompactionStrategy().withCompactionWindow(1, CompactionWindowUnit.DAYS)).withNoCompression().build());
  }

  private static void data(CqlSession session, String keyspace) {
    for (int ck = 0; ck < 5; ck++) {
      session.execute(insertInto(keyspace, "built").value("pk", literal(1)).value("ck", literal(ck)).value("at", now()).value("v", literal("it's " + ck))
          .value("l", literal(List.of(ck, ck + 1))).value("s", literal(Set.of("a"))).value("m", literal(Map.of("k", ck))).value("shared", literal("all"))
          .usingTtl(5000).usingTimestamp(1_000_000L + ck).build());
    }
    session.execute(session.prepare(insertInto("built").json(bindMarker()).build()).bind(
        "{\"pk\": 2, \"ck\": 0, \"at\": \"d2177dd0-eaa2-11de-a572-001b779c76e3\", \"shape\": {\"sides\": 3, \"names\": [\"x\"]}}"));

    List<Integer> seen = new ArrayList<>();
    session.execute(selectFrom("built").column("ck").whereColumn("pk").isEqualTo(literal(1)).whereColumn("ck").isGreaterThan(literal(0))
        .orderBy("ck", ClusteringOrder.ASC).orderBy("at", ClusteringOrder.DESC).limit(3).build()).forEach(row -> seen.add(row.getInt(0)));
    Client.same(seen, List.of(1, 2, 3), "ordered and limited");

    Row row = session.execute(session.prepare(selectFrom(keyspace, "built").column("v").as("text").writeTime("v").as("written").ttl("v").as("left")
        .cast(Selector.column("ck"), DataTypes.TEXT).as("number")
        .whereColumn("pk").isEqualTo(bindMarker("key")).whereColumn("ck").isEqualTo(bindMarker()).build()).boundStatementBuilder().setInt("key", 1).setInt("ck", 2).build()).one();
    Client.same(row.getString("text") + row.getLong("written") + row.getString("number"), "it's 210000022", "functions of columns");
    Client.same(row.getInt("left") > 4000 && row.getInt("left") <= 5000, true, "seconds left: " + row.getInt("left"));

    Client.same(session.execute(selectFrom("built").countAll().whereToken("pk").isEqualTo(raw("token(1)")).build()).one().getLong(0), 5L, "by token");
    Client.same(session.execute(selectFrom("built").column("pk").whereColumn("pk").in(literal(1), literal(2)).perPartitionLimit(1).build()).all().size(), 2, "one of each partition");
    Client.same(session.execute(selectFrom("built").function("max", Selector.column("ck")).groupBy("pk").whereColumn("pk").isEqualTo(literal(1)).build()).one().getInt(0), 4, "greatest of a group");
    Client.same(session.execute(selectFrom("built").all().where(Relation.columns("ck").in(tuple(literal(1)), tuple(literal(3)))).whereColumn("pk").isEqualTo(literal(1)).build()).all().size(), 2, "tuples");
    Client.same(session.execute(selectFrom("built").distinct().columns("pk", "shared").build()).all().size(), 2, "distinct");
    Client.same(session.execute(selectFrom("built").json().column("pk").whereColumn("pk").isEqualTo(literal(2)).build()).one().getString(0), "{\"pk\": 2}", "JSON");
    Client.same(session.execute(selectFrom("built").column("ck").whereColumn("m").containsKey(literal("k")).whereColumn("v").isEqualTo(literal("it's 3")).allowFiltering().build()).one().getInt(0), 3, "filtered");

    Row at = session.execute(selectFrom("built").column("at").whereColumn("pk").isEqualTo(literal(1)).whereColumn("ck").isEqualTo(literal(2)).build()).one();
    session.execute(update("built").usingTtl(900).setColumn("v", literal("new")).setMapValue("m", literal("j"), literal(9)).appendListElement("l", literal(7)).prependListElement("l", literal(-7))
        .appendSetElement("s", literal("b")).removeSetElement("s", literal("a"))
        .whereColumn("pk").isEqualTo(literal(1)).whereColumn("ck").isEqualTo(literal(2)).whereColumn("at").isEqualTo(literal(at.getUuid(0))).build());
    row = session.execute(selectFrom("built").all().whereColumn("pk").isEqualTo(literal(1)).whereColumn("ck").isEqualTo(literal(2)).build()).one();
    Client.same(row.getString("v") + row.getList("l", Integer.class) + row.getObject("s") + row.getMap("m", String.class, Integer.class).get("j"), "new[-7, 2, 3, 7][b]9", "updated");
    session.execute(deleteFrom("built").element("m", literal("j")).column("v").usingTimestamp(System.currentTimeMillis() * 1000 + 60_000_000)
        .whereColumn("pk").isEqualTo(literal(1)).whereColumn("ck").isEqualTo(literal(2)).whereColumn("at").isEqualTo(literal(at.getUuid(0))).build());
    row = session.execute(selectFrom("built").all().whereColumn("pk").isEqualTo(literal(1)).whereColumn("ck").isEqualTo(literal(2)).build()).one();
    Client.same(row.getString("v") + row.getObject("m"), "null{k=2}", "deleted");
    session.execute(deleteFrom("built").whereColumn("pk").isEqualTo(literal(1)).whereColumn("ck").isLessThan(literal(2)).build());
    Client.same(session.execute(selectFrom("built").countAll().whereColumn("pk").isEqualTo(literal(1)).build()).one().getLong(0), 3L, "a range deleted");
  }
}

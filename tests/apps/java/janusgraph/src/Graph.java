import java.util.ArrayList;
import java.util.Collections;
import java.util.Date;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.tinkerpop.gremlin.process.traversal.P;
import org.apache.tinkerpop.gremlin.process.traversal.Order;
import org.apache.tinkerpop.gremlin.process.traversal.dsl.graph.GraphTraversalSource;
import org.apache.tinkerpop.gremlin.process.traversal.dsl.graph.__;
import org.apache.tinkerpop.gremlin.structure.Edge;
import org.apache.tinkerpop.gremlin.structure.Vertex;
import org.janusgraph.core.Cardinality;
import org.janusgraph.core.JanusGraph;
import org.janusgraph.core.JanusGraphFactory;
import org.janusgraph.core.JanusGraphTransaction;
import org.janusgraph.core.Multiplicity;
import org.janusgraph.core.PropertyKey;
import org.janusgraph.core.SchemaViolationException;
import org.janusgraph.core.schema.ConsistencyModifier;
import org.janusgraph.core.schema.JanusGraphIndex;
import org.janusgraph.core.schema.JanusGraphManagement;

/** A graph of stations and the lines between them on JanusGraph's CQL storage, extended while a node is killed. */
public class Graph {
  static final int STATIONS = 200;
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
      StringBuilder why = new StringBuilder(error.toString());
      for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) why.append(" <- ").append(cause);
      System.out.println("FAILED " + name + ": " + why.toString().replace('\n', ' '));
    }
  }

  static void same(Object found, Object expected, String what) {
    if (!found.equals(expected)) throw new AssertionError(what + ": " + found + " instead of " + expected);
  }

  static JanusGraph open() {
    String dc = System.getenv("DATACENTER");
    return JanusGraphFactory.build()
        .set("storage.backend", "cql")
        .set("storage.hostname", System.getenv("HOSTS"))
        .set("storage.cql.keyspace", "stations")
        .set("storage.cql.local-datacenter", dc)
        .set("storage.cql.replication-strategy-class", "NetworkTopologyStrategy")
        .set("storage.cql.replication-strategy-options", dc + ",3")
        .set("storage.cql.read-consistency-level", "QUORUM")
        .set("storage.cql.write-consistency-level", "QUORUM")
        .set("storage.cql.request-timeout", 15000)
        .set("storage.cql.session-leak-threshold", 0)
        .set("storage.connection-timeout", 15000)
        .set("storage.lock.wait-time", 300)
        .set("schema.default", "none")
        .set("query.force-index", true)
        .set("ids.block-size", 1000)
        .open();
  }

  JanusGraph graph = open();
  int grown;

  /** A traversal that sees what was committed: the thread's transaction, which keeps what it read, ends. */
  GraphTraversalSource fresh() {
    graph.tx().rollback();
    return graph.traversal();
  }

  Vertex add(JanusGraphTransaction tx, int number, String kind) {
    Vertex station = tx.addVertex("station");
    station.property("number", number);
    station.property("kind", kind);
    station.property("name", "Station " + number + " ü");
    station.property("height", number * 1.25);
    station.property("opened", new Date(1_000_000_000_000L + number));
    station.property("uid", new UUID(7, number));
    station.property("alias", "a" + number % 3);
    station.property("alias", "b" + number % 5);
    return station;
  }

  void run() {
    check("schema", () -> {
      JanusGraphManagement management = graph.openManagement();
      PropertyKey number = management.makePropertyKey("number").dataType(Integer.class).make();
      PropertyKey kind = management.makePropertyKey("kind").dataType(String.class).make();
      PropertyKey name = management.makePropertyKey("name").dataType(String.class).make();
      management.makePropertyKey("height").dataType(Double.class).make();
      management.makePropertyKey("opened").dataType(Date.class).make();
      management.makePropertyKey("uid").dataType(UUID.class).make();
      management.makePropertyKey("alias").dataType(String.class).cardinality(Cardinality.SET).make();
      PropertyKey minutes = management.makePropertyKey("minutes").dataType(Integer.class).make();
      management.makeVertexLabel("station").make();
      management.makeEdgeLabel("line").multiplicity(Multiplicity.MULTI).make();
      management.buildEdgeIndex(management.getEdgeLabel("line"), "by_minutes", org.apache.tinkerpop.gremlin.structure.Direction.BOTH, Order.asc, minutes);
      JanusGraphIndex unique = management.buildIndex("by_number", Vertex.class).addKey(kind).addKey(number).unique().buildCompositeIndex();
      management.setConsistency(unique, ConsistencyModifier.LOCK);
      management.buildIndex("by_kind", Vertex.class).addKey(kind).buildCompositeIndex();
      management.buildIndex("by_name", Vertex.class).addKey(name).buildCompositeIndex();
      management.commit();
    });
    check("load", () -> {
      JanusGraphTransaction tx = graph.newTransaction();
      List<Vertex> all = new ArrayList<>();
      for (int n = 0; n < STATIONS; n++) all.add(add(tx, n, "calm"));
      // A ring, and a star of every tenth station.
      for (int n = 0; n < STATIONS; n++) all.get(n).addEdge("line", all.get((n + 1) % STATIONS), "minutes", n % 30);
      for (int n = 10; n < STATIONS; n += 10) all.get(0).addEdge("line", all.get(n), "minutes", 100 + n);
      tx.commit();
      same(fresh().V().has("kind", "calm").count().next(), (long) STATIONS, "stations");
    });
    check("traverse", () -> {
      GraphTraversalSource g = fresh();
      same(g.V().has("kind", "calm").has("number", 5).repeat(__.out("line")).times(20).values("number").toList(), List.of(25), "twenty stations on");
      Set<Object> reached = new HashSet<>(g.V().has("kind", "calm").has("number", 0).out("line").values("number").toList());
      Set<Object> expected = new HashSet<>(List.of(1));
      for (int n = 10; n < STATIONS; n += 10) expected.add(n);
      same(reached, expected, "from the first station");
      same(g.V().has("kind", "calm").has("number", 0).outE("line").has("minutes", P.gte(150)).count().next(), 15L, "lines by the edge index");
      same(g.V().has("kind", "calm").has("number", 0).out("line").out("line").dedup().count().next(), 20L, "two hops");
      same(g.V().has("kind", "calm").has("number", 3).path().count().next(), 1L, "path");
    });
    check("index", () -> {
      GraphTraversalSource g = fresh();
      Map<Object, Object> one = g.V().has("name", "Station 17 ü").elementMap("number", "height", "opened", "uid").next();
      same(List.of(one.get("number"), one.get("height"), one.get("opened"), one.get("uid")),
          List.of(17, 21.25, new Date(1_000_000_000_017L), new UUID(7, 17)), "a station");
      same(new HashSet<>(g.V().has("name", "Station 17 ü").values("alias").toList()), Set.of("a2", "b2"), "a set of values");
      same(g.V().has("kind", "none").count().next(), 0L, "nothing");
    });
    check("composite", () -> {
      JanusGraphTransaction tx = graph.newTransaction();
      try {
        add(tx, 5, "calm");
        tx.commit();
        throw new AssertionError("a second station of a unique number was stored");
      } catch (SchemaViolationException expected) {
        tx.rollback();
      }
      same(fresh().V().has("kind", "calm").has("number", 5).count().next(), 1L, "stations of a unique number");
    });
    check("kill_middle", () -> {
      AtomicBoolean back = new AtomicBoolean();
      int n = 0;
      for (; !back.get() || n < 60; n++) {
        JanusGraphTransaction tx = graph.newTransaction();
        Vertex station = add(tx, n, "storm");
        if (n > 0) tx.traversal().V().has("kind", "storm").has("number", n - 1).next().addEdge("line", station, "minutes", n);
        tx.commit();
        if (n == 20) {
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
      }
      grown = n;
      List<Object> numbers = fresh().V().has("kind", "storm").values("number").toList();
      List<Integer> sorted = new ArrayList<>();
      for (Object number : numbers) sorted.add((Integer) number);
      Collections.sort(sorted);
      List<Integer> expected = new ArrayList<>();
      for (int i = 0; i < n; i++) expected.add(i);
      same(sorted, expected, "the stations that were committed");
    });
    check("edges", () -> {
      List<Object> minutes = fresh().V().has("kind", "storm").has("number", 0).repeat(__.outE("line").as("e").inV()).times(grown - 1).emit().<Edge>select("e").values("minutes").toList();
      List<Integer> expected = new ArrayList<>();
      for (int i = 1; i < grown; i++) expected.add(i);
      same(minutes, expected, "the line through all of them");
    });
    check("update", () -> {
      JanusGraphTransaction tx = graph.newTransaction();
      for (int n = 0; n < 50; n++) tx.traversal().V().has("kind", "calm").has("number", n).property("name", "Renamed " + n).iterate();
      tx.commit();
      same(fresh().V().has("name", "Renamed 33").values("number").toList(), List.of(33), "by the new name");
      same(fresh().V().has("name", "Station 33 ü").has("kind", "calm").count().next(), 0L, "by the old name");
    });
    check("remove", () -> {
      JanusGraphTransaction tx = graph.newTransaction();
      for (int n = 100; n < STATIONS; n++) tx.traversal().V().has("kind", "calm").has("number", n).drop().iterate();
      tx.commit();
      same(fresh().V().has("kind", "calm").count().next(), 100L, "stations that are left");
      same(fresh().V().has("kind", "calm").has("number", 99).out("line").count().next(), 0L, "lines to removed stations");
      same(fresh().V().has("kind", "calm").has("number", 0).out("line").count().next(), 10L, "lines of the star");
    });
    check("reopen", () -> {
      graph.close();
      graph = open();
      same(fresh().V().has("kind", "storm").count().next(), (long) grown, "stations after it was opened again");
      same(fresh().V().has("name", "Renamed 33").count().next(), 1L, "a renamed one");
      graph.close();
    });
  }

  public static void main(String[] arguments) {
    try {
      new Graph().run();
    } catch (Throwable error) {
      error.printStackTrace();
      failed++;
    }
    System.out.flush();
    Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
  }
}

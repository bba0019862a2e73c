import com.datastax.oss.driver.api.core.CqlIdentifier;
import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.MappedAsyncPagingIterable;
import com.datastax.oss.driver.api.core.cql.BatchStatement;
import com.datastax.oss.driver.api.core.cql.DefaultBatchType;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import readings.Position;
import readings.Reading;
import readings.ReadingDao;
import readings.ReadingMapper;
import readings.ReadingMapperBuilder;
import readings.TallyDao;

/** Objects in and out through the driver's mapper: its statements, user-defined types, counters, pages, batches. */
final class Mapping {
  private Mapping() {}

  private static Instant at(int seconds) {
    return Instant.ofEpochSecond(1_700_000_000L + seconds);
  }

  static void check(CqlSession session, String keyspace) throws Exception {
    session.execute("CREATE TYPE position (north double, east double, name text)");
    session.execute("CREATE TABLE reading (sensor int, taken_at timestamp, value double, tags set<text>, counts map<text, int>,"
        + " place frozen<position>, path list<frozen<position>>, PRIMARY KEY (sensor, taken_at))");
    session.execute("CREATE TABLE tally (sensor int PRIMARY KEY, seen counter)");
    ReadingMapper mapper = new ReadingMapperBuilder(session).build();
    ReadingDao readings = mapper.readings(CqlIdentifier.fromCql(keyspace), CqlIdentifier.fromCql("reading"));

    Reading full = new Reading(1, at(0), 1.5);
    full.setTags(Set.of("dry", "cold"));
    full.setCounts(Map.of("a", 1, "b", 2));
    full.setPlace(new Position(52.5, 13.4, "Berlin"));
    full.setPath(List.of(new Position(1, 2, "one"), new Position(3, 4, null)));
    readings.save(full);
    Client.same(readings.find(1, at(0)), full, "a whole object");
    Client.same(readings.find(1, at(1)) == null, true, "no object");

    Reading part = new Reading(1, at(0), 2.5);
    readings.saveWhatIsSet(part);
    full.setValue(2.5);
    Client.same(readings.find(1, at(0)), full, "what was not set stays");
    readings.save(part);
    Reading seen = readings.find(1, at(0));
    Client.same(seen.getTags() == null || seen.getTags().isEmpty(), true, "nulls delete");
    Client.same(seen.getPlace() == null, true, "nulls delete a user-defined type");

    for (int n = 1; n < 20; n++) {
      readings.save(new Reading(1, at(n), (double) n));
    }
    Client.same(readings.count(1), 20L, "count");
    List<Double> newest = new ArrayList<>();
    readings.since(1, at(5), 11).forEach(one -> newest.add(one.getValue()));
    Client.same(newest, List.of(19.0, 18.0, 17.0, 16.0, 15.0, 14.0, 13.0, 12.0, 11.0, 10.0, 9.0), "newest first, by pages of 3");
    MappedAsyncPagingIterable<Reading> page = readings.ofSensor(1).toCompletableFuture().get();
    int objects = page.remaining();
    Client.same(objects, 20, "objects of a page");

    readings.update(new Reading(1, at(3), 33.0));
    Reading both = new Reading();
    both.setValue(45.0);
    readings.updateTwo(both, 1, at(4), at(5));
    Client.same(readings.find(1, at(3)).getValue(), 33.0, "updated");
    Client.same(readings.find(1, at(4)).getValue() + readings.find(1, at(5)).getValue(), 90.0, "two updated");

    readings.saveFor(new Reading(2, at(0), 1.0), 1000, 1234567);
    Client.same(readings.writtenAt(2, at(0)), 1234567L, "timestamp of an insert");
    session.execute(BatchStatement.newInstance(DefaultBatchType.LOGGED, readings.toSave(new Reading(3, at(0), 1.0)), readings.toSave(new Reading(3, at(1), 2.0))));
    Client.same(readings.count(3), 2L, "objects of a batch");
    readings.remove(new Reading(3, at(0), null));
    Client.same(readings.count(3), 1L, "one removed");
    readings.removeSensor(1);
    Client.same(readings.count(1), 0L, "all removed");

    TallyDao tallies = mapper.tallies(CqlIdentifier.fromCql(keyspace));
    tallies.add(1, 5);
    tallies.add(1, -2);
    Client.same(tallies.find(1).getSeen(), 3L, "counter");
  }
}

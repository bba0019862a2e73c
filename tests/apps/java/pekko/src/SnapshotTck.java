import org.apache.pekko.persistence.japi.snapshot.JavaSnapshotStoreSpec;

/** Pekko persistence's TCK of snapshot stores. */
public class SnapshotTck extends JavaSnapshotStoreSpec {
  public SnapshotTck() {
    super(Events.configuration());
  }
}

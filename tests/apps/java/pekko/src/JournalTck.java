import org.apache.pekko.persistence.CapabilityFlag;
import org.apache.pekko.persistence.japi.journal.JavaJournalSpec;

/** Pekko persistence's TCK of journals. */
public class JournalTck extends JavaJournalSpec {
  public JournalTck() {
    super(Events.configuration());
  }

  /** As the plugin's own suite: it serializes when it writes, and a failure there fails the actor. */
  @Override
  public CapabilityFlag supportsRejectingNonSerializableObjects() {
    return CapabilityFlag.off();
  }
}

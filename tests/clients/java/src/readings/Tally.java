package readings;

import com.datastax.oss.driver.api.mapper.annotations.Entity;
import com.datastax.oss.driver.api.mapper.annotations.PartitionKey;

/** A row of counters. */
@Entity
public class Tally {
  @PartitionKey private int sensor;
  private long seen;

  public int getSensor() {
    return sensor;
  }

  public void setSensor(int sensor) {
    this.sensor = sensor;
  }

  public long getSeen() {
    return seen;
  }

  public void setSeen(long seen) {
    this.seen = seen;
  }
}

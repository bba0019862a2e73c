package readings;

import com.datastax.oss.driver.api.mapper.annotations.ClusteringColumn;
import com.datastax.oss.driver.api.mapper.annotations.CqlName;
import com.datastax.oss.driver.api.mapper.annotations.Entity;
import com.datastax.oss.driver.api.mapper.annotations.PartitionKey;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/** A row as an object, with a user-defined type and collections of it. */
@Entity
public class Reading {
  @PartitionKey private int sensor;

  @ClusteringColumn
  @CqlName("taken_at")
  private Instant takenAt;

  private Double value;
  private Set<String> tags;
  private Map<String, Integer> counts;
  private Position place;
  private List<Position> path;

  public Reading() {}

  public Reading(int sensor, Instant takenAt, Double value) {
    this.sensor = sensor;
    this.takenAt = takenAt;
    this.value = value;
  }

  public int getSensor() {
    return sensor;
  }

  public void setSensor(int sensor) {
    this.sensor = sensor;
  }

  public Instant getTakenAt() {
    return takenAt;
  }

  public void setTakenAt(Instant takenAt) {
    this.takenAt = takenAt;
  }

  public Double getValue() {
    return value;
  }

  public void setValue(Double value) {
    this.value = value;
  }

  public Set<String> getTags() {
    return tags;
  }

  public void setTags(Set<String> tags) {
    this.tags = tags;
  }

  public Map<String, Integer> getCounts() {
    return counts;
  }

  public void setCounts(Map<String, Integer> counts) {
    this.counts = counts;
  }

  public Position getPlace() {
    return place;
  }

  public void setPlace(Position place) {
    this.place = place;
  }

  public List<Position> getPath() {
    return path;
  }

  public void setPath(List<Position> path) {
    this.path = path;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Reading it
        && it.sensor == sensor
        && it.takenAt.equals(takenAt)
        && Objects.equals(it.value, value)
        && Objects.equals(it.tags, tags)
        && Objects.equals(it.counts, counts)
        && Objects.equals(it.place, place)
        && Objects.equals(it.path, path);
  }

  @Override
  public int hashCode() {
    return Objects.hash(sensor, takenAt);
  }

  @Override
  public String toString() {
    return sensor + " " + takenAt + " " + value + " " + tags + " " + counts + " " + place + " " + path;
  }
}

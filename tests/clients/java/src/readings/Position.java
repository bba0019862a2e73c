package readings;

import com.datastax.oss.driver.api.mapper.annotations.Entity;
import com.datastax.oss.driver.api.mapper.annotations.SchemaHint;
import java.util.Objects;

/** A user-defined type of the schema, as a value of the application. */
@Entity
@SchemaHint(targetElement = SchemaHint.TargetElement.UDT)
public class Position {
  private double north;
  private double east;
  private String name;

  public Position() {}

  public Position(double north, double east, String name) {
    this.north = north;
    this.east = east;
    this.name = name;
  }

  public double getNorth() {
    return north;
  }

  public void setNorth(double north) {
    this.north = north;
  }

  public double getEast() {
    return east;
  }

  public void setEast(double east) {
    this.east = east;
  }

  public String getName() {
    return name;
  }

  public void setName(String name) {
    this.name = name;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Position it && it.north == north && it.east == east && Objects.equals(it.name, name);
  }

  @Override
  public int hashCode() {
    return Objects.hash(north, east, name);
  }

  @Override
  public String toString() {
    return name + "(" + north + ", " + east + ")";
  }
}

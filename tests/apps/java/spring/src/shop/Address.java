package shop;

import java.util.Objects;
import java.util.Set;
import org.springframework.data.cassandra.core.mapping.UserDefinedType;

/** A user-defined type. */
@UserDefinedType("address")
public class Address {
  String street;
  int number;
  Set<String> labels;

  public Address(String street, int number, Set<String> labels) {
    this.street = street;
    this.number = number;
    this.labels = labels;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Address that && number == that.number && Objects.equals(street, that.street) && Objects.equals(labels, that.labels);
  }

  @Override
  public int hashCode() {
    return Objects.hash(street, number);
  }

  @Override
  public String toString() {
    return street + " " + number + " " + labels;
  }
}

package shop;

import java.io.Serializable;
import java.util.Objects;
import org.springframework.data.cassandra.core.cql.Ordering;
import org.springframework.data.cassandra.core.cql.PrimaryKeyType;
import org.springframework.data.cassandra.core.mapping.PrimaryKeyClass;
import org.springframework.data.cassandra.core.mapping.PrimaryKeyColumn;

@PrimaryKeyClass
public class OrderKey implements Serializable {
  @PrimaryKeyColumn(name = "customer", ordinal = 0, type = PrimaryKeyType.PARTITIONED)
  String customer;

  @PrimaryKeyColumn(name = "number", ordinal = 1, type = PrimaryKeyType.CLUSTERED, ordering = Ordering.DESCENDING)
  int number;

  @PrimaryKeyColumn(name = "part", ordinal = 2, type = PrimaryKeyType.CLUSTERED)
  String part;

  public OrderKey(String customer, int number, String part) {
    this.customer = customer;
    this.number = number;
    this.part = part;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof OrderKey that && customer.equals(that.customer) && number == that.number && part.equals(that.part);
  }

  @Override
  public int hashCode() {
    return Objects.hash(customer, number, part);
  }
}

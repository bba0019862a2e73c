package shop;

import java.math.BigDecimal;
import java.time.Instant;
import java.time.LocalDate;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.springframework.data.cassandra.core.mapping.CassandraType;
import org.springframework.data.cassandra.core.mapping.Column;
import org.springframework.data.cassandra.core.mapping.Frozen;
import org.springframework.data.cassandra.core.mapping.PrimaryKey;
import org.springframework.data.cassandra.core.mapping.Table;

@Table("orders")
public class Order {
  enum State {
    OPEN,
    SENT
  }

  @PrimaryKey OrderKey key;

  UUID uid;
  BigDecimal total;
  Instant at;
  LocalDate day;
  State state;
  Set<String> tags;
  List<Integer> amounts;
  Map<String, String> notes;
  @Frozen Address address;

  @Column("customer_note")
  String note;

  public Order(OrderKey key) {
    this.key = key;
  }
}

package shop;

import java.util.List;
import java.util.stream.Stream;
import org.springframework.data.cassandra.repository.AllowFiltering;
import org.springframework.data.cassandra.repository.CassandraRepository;
import org.springframework.data.cassandra.repository.Query;
import org.springframework.data.domain.Pageable;
import org.springframework.data.domain.Slice;

public interface Orders extends CassandraRepository<Order, OrderKey> {
  List<Order> findByKeyCustomer(String customer);

  Slice<Order> findByKeyCustomer(String customer, Pageable page);

  List<Order> findByKeyCustomerAndKeyNumberBetween(String customer, int from, int to);

  List<Order> findByKeyCustomerAndKeyNumberGreaterThanEqualOrderByKeyNumberAsc(String customer, int from);

  @AllowFiltering
  List<Order> findByKeyCustomerAndState(String customer, Order.State state);

  @AllowFiltering
  List<Order> findByKeyCustomerAndTagsContains(String customer, String tag);

  Stream<Order> streamByKeyCustomer(String customer);

  long countByKeyCustomer(String customer);

  boolean existsByKeyCustomerAndKeyNumber(String customer, int number);

  @Query("SELECT max(number) FROM orders WHERE customer = ?0")
  int last(String customer);

  void deleteByKeyCustomerAndKeyNumber(String customer, int number);
}
